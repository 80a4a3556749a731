// Files of NxD's optimizer: an input is the pickle of one, or those of an xser container.

#include "reshard/layouts/optimizer/optimizer_file.h"

#include "fuzz/target.h"

void reshard::test::fuzz(std::string_view input) {
  MemoryFiles files;
  write_xser(files, input);
  const OptimizerFile file = read_optimizer_file(files, "c");
  std::size_t count = 0;
  for (const OptimizerFileGroup& group : file.groups) count += group.count;
  check(count == file.entries.size());
  for (const StateShard& shard : file.shards) {
    check(shard.entry < file.entries.size());
    check(shard.tensor.file < file.files.size());
    check_bounds(shard.tensor, file.files[shard.tensor.file].size_bytes);
  }
}
