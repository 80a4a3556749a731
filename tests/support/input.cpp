#include "support/input.h"

#include <algorithm>

#include "reshard/layouts/ranks/rank_format.h"
#include "support/catch.h"
#include "support/errors.h"
#include "support/layouts.h"
#include "support/local_files.h"

namespace reshard::test {

namespace fs = std::filesystem;

Input::Input(const TinyModel& tiny, const RequestFields& fields, std::uint64_t seed, DType dtype)
    : model(tiny), to(fields), random(seed) {
  if (to.with_optimizer) {
    run = random_training(random, model);
    tensors = run.weights;
    write_dcp(temp / "model", run, random, false);
    write_file(temp / "model/config.json", model.config().dump());
  } else {
    tensors = random_tensors(model, random, dtype);
    write_model(temp / "model", model, tensors);
  }
  write_as_asked();
}

Input::Input(const RequestFields& fields, const std::function<TensorMap(const fs::path&)>& write)
    : to(fields), tensors(write(temp / "model")) {
  write_as_asked();
}

void Input::write_as_asked() const {
  if (to.layout.empty()) return;
  const LayoutTraits& traits = layout(to.layout)->traits();
  if (traits.has_ranks() && !traits.needs_no_mesh() && !to.with_optimizer)
    shard(temp / "model", temp / "out", to);
  else
    convert(temp / "model", temp / "out", to);
}

fs::path Input::rank_file(std::uint32_t tp_rank, std::uint32_t pp_rank) const {
  const Layout& kind = *layout(to.layout);
  return path() / rank_path(kind, to.format.value_or(*usual_format(kind)), {tp_rank, pp_rank});
}

Error Input::refusal() const {
  const Error error = error_of([&] { whole(); });
  CHECK(error.kind() == ErrorKind::kBadInput);
  CHECK_FALSE(fs::exists(temp / "whole"));
  return error;
}

void change_tensor(const fs::path& file, const std::string& name, const std::function<void(std::string&)>& change) {
  const Container container = read_container(file, format_of_file(file));
  const auto found = std::find_if(container.tensors.begin(), container.tensors.end(),
                                  [&](const auto& tensor) { return tensor.name == name; });
  REQUIRE(found != container.tensors.end());
  const fs::path& stored = container.files[found->file].path;
  std::string content = read_file(stored);
  std::string bytes = content.substr(found->offset_bytes, found->size_bytes);
  change(bytes);
  REQUIRE(bytes.size() == found->size_bytes);
  write_file(stored, content.replace(found->offset_bytes, bytes.size(), bytes));
}

void flip_bit(const fs::path& file, const std::string& tensor, std::size_t byte) {
  change_tensor(file, tensor, [&](std::string& bytes) { bytes.at(byte) = static_cast<char>(bytes.at(byte) ^ 1); });
}

}  // namespace reshard::test
