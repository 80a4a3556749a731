#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "reshard/formats/common/format.h"
#include "reshard/io/files.h"

namespace reshard {

inline constexpr const char* kSafetensorsFile = "model.safetensors";
inline constexpr const char* kSafetensorsIndexFile = "model.safetensors.index.json";
inline constexpr const char* kPytorchFile = "pytorch_model.bin";
inline constexpr const char* kPytorchIndexFile = "pytorch_model.bin.index.json";
/// The files of diffusers.
inline constexpr const char* kDiffusersSafetensorsFile = "diffusion_pytorch_model.safetensors";
inline constexpr const char* kDiffusersPytorchFile = "diffusion_pytorch_model.bin";
/// Stem of the files in which diffusers looks for LoRA adapters.
inline constexpr const char* kDiffusersLoraStem = "pytorch_lora_weights";
/// Suffix of an index: appended to the name of the file that would contain the whole model.
inline constexpr const char* kIndexEnding = ".index.json";
/// Written by reshard next to shards: the metadata of the source model's index, except for total_size.
inline constexpr const char* kKeptIndexMetadataFile = "reshard_index_metadata.json";

/// Name of each tensor and of the file in the same directory that contains it.
using TensorFiles = std::vector<std::pair<std::string, std::string>>;

/// `model.safetensors.index.json` or `pytorch_model.bin.index.json` (huggingface_hub/serialization/_base.py).
struct HfIndex {
  std::uint64_t total_size_bytes = 0;  // 0 if the file does not record it
  TensorFiles weight_map;
  std::string metadata;  // JSON of its "metadata"; empty if that contains only total_size
};

/// \throws Error kBadInput if it is not a valid index, or names a file outside its directory.
HfIndex read_hf_index(Files& files, const std::filesystem::path& path);

/// Reads the index of a folder that contains one file per tensor: an object that maps names to files.
/// \throws Error like read_hf_index.
TensorFiles read_split_index(Files& files, const std::filesystem::path& path);

/// Returns the text of an index file as transformers writes it: indented by two spaces, sorted keys, ASCII only, with a
/// final newline. total_size_bytes replaces total_size in `metadata`, unless they are equal.
std::string hf_index_text(const HfIndex& index);

/// Returns `metadata` for a model from which tensors were removed, with an updated total_parameters.
/// \param before, after  number of elements of all tensors. If total_parameters differs from `before`, its meaning is
///                unknown and it is removed.
std::string recounted_metadata(const std::string& metadata, std::uint64_t before, std::uint64_t after);

/// HfIndex::metadata and the file that contains it.
struct IndexMetadata {
  std::string text;            // empty if there is none
  std::filesystem::path file;  // empty like `text`
};

/// Returns the metadata that was kept next to shards in `directory`, if any.
/// \throws Error kBadInput, naming the file, if it is not a JSON object.
IndexMetadata read_kept_index_metadata(Files& files, const std::filesystem::path& directory);
/// Returns the text of kKeptIndexMetadataFile.
std::string kept_index_metadata_text(const std::string& metadata);

/// Returns the name of file `number` (from 1) of `count`: "model-00001-of-00003.safetensors" or
/// "pytorch_model-00001-of-00003.bin"; "model.safetensors" if `count` is 1. `format` must not be xser, which Hugging
/// Face lacks.
/// \param stem  replaces "model" and "pytorch_model"; may be empty.
std::string hf_file_name(Format format, std::size_t number, std::size_t count, const std::string& stem = {});
/// Number of a weight file and the number of files, from its name.
struct HfFileNumber {
  std::string whole;  // name of the same model in a single file, with its variant: "model.fp16.safetensors"
  std::uint64_t number = 0;
  std::uint64_t count = 0;
};
/// Parses names such as "model-00001-of-00003.safetensors", with numbers of any width; std::nullopt for other names.
std::optional<HfFileNumber> hf_file_number(std::string_view name);
/// Returns the name of the file that `name` is an index of, for several files or a variant: "model.safetensors" for
/// "model.safetensors.index.json" and "model.safetensors.index.fp16.json". Empty if `name` is not an index.
std::string_view indexed_name(std::string_view name);

/// A variant of a model, such as save_pretrained(variant="fp16") writes.
struct HfVariant {
  std::string whole;    // name of the model in a single file, without the variant: "model.safetensors"
  std::string variant;  // "fp16"
};
/// Parses names of weight files and indexes: "model.fp16.safetensors", "model.safetensors.index.fp16.json",
/// "model.fp16-00001-of-00002.safetensors" and, as in diffusers, "model-00001-of-00002.fp16.safetensors"; std::nullopt
/// for other names.
std::optional<HfVariant> hf_variant(std::string_view name);
/// Inverse of hf_variant for a model in a single file: "model.fp16.safetensors".
std::string hf_variant_name(const HfVariant& variant);
std::string hf_variant_index_name(const HfVariant& variant);

/// Whether weight files or indexes of Hugging Face checkpoints have names of this form, with any numbers:
/// "pytorch_model-….bin".
bool is_hf_weights_name(std::string_view name);
/// Returns "model.safetensors.index.json" or "pytorch_model.bin.index.json", with another stem unless it is empty.
std::string hf_index_name(Format format, const std::string& stem = {});

/// Returns the stem of a weights file that diffusers looks for, "diffusion_pytorch_model" or kDiffusersLoraStem; empty
/// for other names.
std::string diffusers_stem(std::string_view file_name);

}  // namespace reshard
