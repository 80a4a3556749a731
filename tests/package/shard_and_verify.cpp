// Shards a model for 2 tensor-parallel ranks, compares what was written with the model, and prints the SHA-256 of each
// tensor: shard_and_verify MODEL OUTPUT
#include <reshard/reshard.h>

#include <cstdio>
#include <numeric>

using namespace reshard;

int main(int argc, char** argv) try {
  if (argc != 3) return 2;
  Request request;
  request.source.path = argv[1];
  request.output_directory = argv[2];
  request.target.tp = 2;
  execute(*plan_shard(all_files(), request), RunOptions{});

  const Checkpoint model = read_checkpoint(all_files(), argv[1], {}),
                   shards = read_checkpoint(all_files(), argv[2], {});
  if (!verify(model.map, shards.map, VerifyOptions{}, RunOptions{}).same()) return 1;

  std::vector<std::uint32_t> all(shards.map.logical.size());
  std::iota(all.begin(), all.end(), 0u);
  const std::vector<TensorDigest> digests = compute_digests(shards.map, all, RunOptions{});
  for (const std::uint32_t t : all)
    std::printf("%s  %s\n", to_hex(digests[t].digest).c_str(), shards.map.logical[t].name.c_str());
} catch (const Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
