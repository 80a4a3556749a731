// xser containers of up to three pickles. A container of files that are whole archives is their readers' matter
// (torch_file.cpp).

#include "reshard/formats/torch/xser.h"

#include "fuzz/target.h"

void reshard::test::fuzz(std::string_view input) {
  MemoryFiles files;
  write_xser(files, input);
  const Container container = read_xser(files, "c");
  for (const TensorEntry& tensor : container.tensors) {
    check(tensor.file < container.files.size());
    check_bounds(tensor, container.files[tensor.file].size_bytes);
  }
}
