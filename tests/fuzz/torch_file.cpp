// Files of torch.save. An input is a file as it is, or, after a '@', the pickle of an archive with two storages.

#include "reshard/formats/torch/torch_file.h"

#include "fuzz/target.h"

void reshard::test::fuzz(std::string_view input) {
  const Container container =
      read_torch(MemorySource(input.starts_with('@') ? archive_of(input.substr(1)) : std::string(input)), "f");
  for (const TensorEntry& tensor : container.tensors) check_bounds(tensor, container.size_bytes);
}
