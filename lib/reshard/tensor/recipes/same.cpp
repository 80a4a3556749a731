#include "reshard/tensor/recipes/same.h"

#include <algorithm>

#include "reshard/base/error.h"

namespace reshard {
namespace {

class Same : public Recipe {
 public:
  std::string key() const override { return std::string(kSameKey); }
  bool is_elementwise() const override { return true; }

  void validate(std::span<const Operand> inputs, const Operand& output) const override {
    for (const Operand& input : inputs)
      if (input.dtype != output.dtype || input.shape != output.shape) throw differ(output.name);
    if (inputs.empty()) throw Error(ErrorKind::kInternal, "has no inputs").tensor(std::string(output.name));
  }

  void apply(std::span<const InputBox> inputs, const Box&, std::span<std::byte> result, Findings&) const override {
    for (const InputBox& input : inputs)
      if (!std::ranges::equal(input.bytes, inputs.front().bytes)) throw differ({});
    std::ranges::copy(inputs.front().bytes, result.begin());
  }

 private:
  static Error differ(std::string_view output) {
    return Error(ErrorKind::kUnsupported, "would be one tensor for several linears, whose own tensors differ")
        .tensor(std::string(output))
        .hint(
            "store the linears separately, if the layout has an option for that, or choose how to fuse them "
            "(`lora-fuse`)");
  }
};

}  // namespace

std::shared_ptr<const Recipe> same_recipe() {
  return std::make_shared<Same>();
}

}  // namespace reshard
