// Shards a model for 2 tensor-parallel ranks, compares what was written with the model, and prints the SHA-256 of each
// tensor: shard_and_verify MODEL OUTPUT
#include <reshard/reshard.h>

#include <cstdio>
#include <vector>

using namespace reshard;

int main(int argc, char** argv) try {
  if (argc != 3) return 2;
  Request request;
  request.source.path = argv[1];
  request.output_directory = argv[2];
  request.target.tp = 2;
  execute(*plan_shard(all_files(), request), RunOptions{});

  const ReadContext strict{ConfigUse::kStrict};
  const Checkpoint model = read_checkpoint(all_files(), argv[1], strict);
  const Checkpoint shards = read_checkpoint(all_files(), argv[2], strict);
  if (!verify(model.map, shards.map, VerifyOptions{}, RunOptions{}).same()) return 1;

  std::vector<std::uint32_t> wanted;  // all but the constants that ranks contain in addition to the model
  for (std::uint32_t t = 0; t < shards.map.logical.size(); ++t)
    if (shards.map.logical[t].constant() == nullptr) wanted.push_back(t);
  const std::vector<TensorDigest> digests = compute_digests(shards.map, wanted, RunOptions{});
  for (std::size_t i = 0; i < wanted.size(); ++i)
    std::printf("%s  %s\n", to_hex(digests[i].digest).c_str(), shards.map.logical[wanted[i]].name.c_str());
} catch (const Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
