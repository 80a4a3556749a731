#include <reshard/layouts/checkpoint.h>

#include <cstdio>

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const auto inspection = reshard::read_checkpoint(argv[1], {reshard::ConfigUse::kLenient});
  for (const reshard::LogicalTensor& tensor : inspection.map.logical)
    std::printf("%s %s\n", tensor.name.c_str(), reshard::to_string(tensor.shape).c_str());
}
