#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "support/models.h"
#include "support/optimizer_oracle.h"
#include "support/requests.h"
#include "support/temp_dir.h"

namespace reshard::test {

/// A model of random numbers in a directory of its own, and the checkpoint that it was written as: the input of a test.
struct Input {
  /// Draws a model from `seed` and writes it to "model". If `to` names a layout, the model is then written in it, to
  /// "out". With `to.with_optimizer`, "model" is a training run of torch.distributed.checkpoint.
  explicit Input(const TinyModel& tiny = {}, const RequestFields& to = {}, std::uint64_t seed = 1,
                 DType dtype = DType::kBF16);
  /// The same of a model that `write` puts into the directory that it is given, and whose tensors it returns.
  Input(const RequestFields& to, const std::function<TensorMap(const std::filesystem::path&)>& write);

  std::filesystem::path operator/(const std::filesystem::path& relative) const { return temp / relative; }
  /// The checkpoint: "out", or "model" if no layout was given.
  std::filesystem::path path() const { return to.layout.empty() ? temp / "model" : temp / "out"; }
  /// The weights of one rank of it.
  std::filesystem::path rank_file(std::uint32_t tp_rank, std::uint32_t pp_rank = 0) const;
  /// The tensors of the model that the checkpoint is consolidated to, in "whole".
  TensorMap whole() const { return consolidated(path(), temp / "whole", {.family = to.family}); }
  /// The error of consolidating the checkpoint, which is bad input. Nothing may be written.
  Error refusal() const;

  TempDir temp;
  TinyModel model;  // of the first constructor
  RequestFields to;
  Random random;  // of the first constructor: goes on after the model
  TensorMap tensors;
  TrainingRun run;  // empty without an optimizer

 private:
  void write_as_asked() const;
};

/// Changes the bytes of a tensor in a rank's or a model's file, of any format. Their number and all other content stay.
void change_tensor(const std::filesystem::path& file, const std::string& name,
                   const std::function<void(std::string& bytes)>& change);

/// The same: inverts the lowest bit of a byte.
void flip_bit(const std::filesystem::path& file, const std::string& tensor, std::size_t byte = 0);

}  // namespace reshard::test
