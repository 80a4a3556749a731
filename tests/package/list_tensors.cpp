// Prints the names and shapes of a checkpoint's tensors, whatever its layout: list_tensors PATH
#include <reshard/reshard.h>

#include <cstdio>

int main(int argc, char** argv) try {
  if (argc != 2) return 2;
  const reshard::Checkpoint checkpoint = reshard::read_checkpoint(reshard::all_files(), argv[1], {});
  for (const reshard::LogicalTensor& tensor : checkpoint.map.logical)
    std::printf("%s %s\n", tensor.name.c_str(), reshard::to_string(tensor.shape).c_str());
} catch (const reshard::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
