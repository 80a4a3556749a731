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
/// The same of diffusers, which is only read.
inline constexpr const char* kDiffusersSafetensorsFile = "diffusion_pytorch_model.safetensors";
inline constexpr const char* kDiffusersPytorchFile = "diffusion_pytorch_model.bin";
/// What follows the name of the whole model's file in the name of its index.
inline constexpr const char* kIndexEnding = ".index.json";
/// Ours, beside shards: what the index of the model that they were made of says beside total_size.
inline constexpr const char* kKeptIndexMetadataFile = "reshard_index_metadata.json";

/// `model.safetensors.index.json` or `pytorch_model.bin.index.json` (huggingface_hub/serialization/_base.py).
struct HfIndex {
  std::uint64_t total_size_bytes = 0;                           // 0 where the file does not say
  std::vector<std::pair<std::string, std::string>> weight_map;  // tensor name → file name
  std::string metadata;  // JSON of its "metadata"; empty where that says nothing but the total_size
};

/// \throws Error kBadInput if it is not such an index or names a file outside its own directory.
HfIndex read_hf_index(Files& files, const std::filesystem::path& path);

/// The text of an index file, as transformers writes it: two spaces of indent, sorted keys, all in ASCII, a newline
/// at the end. Of `metadata` the total_size gives way to total_size_bytes, unless it is the same number.
std::string hf_index_text(const HfIndex& index);

/// `metadata` of an index whose model loses tensors: with another number of total_parameters.
/// \param before, after  Elements of all tensors. Where `before` is not the number that stands there, nobody knows what
/// it counts, and it is left out.
std::string recounted_metadata(const std::string& metadata, std::uint64_t before, std::uint64_t after);

/// HfIndex::metadata as kept beside shards in `directory`; empty where nothing is kept.
/// \throws Error kBadInput, naming the file, if it is no JSON object.
std::string read_kept_index_metadata(Files& files, const std::filesystem::path& directory);
/// The text of kKeptIndexMetadataFile.
std::string kept_index_metadata_text(const std::string& metadata);

/// The name of file `number` (from 1) of `count`: "model-00001-of-00003.safetensors", or "model.safetensors" for one
/// alone; "pytorch_model-00001-of-00003.bin". `format` is not xser, which Hugging Face does not have.
std::string hf_file_name(Format format, std::size_t number, std::size_t count);
/// Number of a weight file among those of its model, as its name states it.
struct HfFileNumber {
  std::string whole;  // name of a model in one file by the same program, with its variant: "model.fp16.safetensors"
  std::uint64_t number = 0;
  std::uint64_t count = 0;
};
/// Parses names such as "model-00001-of-00003.safetensors", with numbers of any width; std::nullopt for other names.
std::optional<HfFileNumber> hf_file_number(std::string_view name);
/// The name of the file that `name` is an index of, one of several files or of a variant of it: "model.safetensors" for
/// "model.safetensors.index.json" and "model.safetensors.index.fp16.json"; empty if it is no such name.
std::string_view indexed_name(std::string_view name);

/// A variant of a model, which save_pretrained(variant="fp16") writes next to others.
struct HfVariant {
  std::string whole;    // name of a model in one file without a variant: "model.safetensors"
  std::string variant;  // "fp16"
};
/// Parses names of weights and of indexes: "model.fp16.safetensors", "model.safetensors.index.fp16.json",
/// "model.fp16-00001-of-00002.safetensors" and, as diffusers has it, "model-00001-of-00002.fp16.safetensors";
/// std::nullopt for other names.
std::optional<HfVariant> hf_variant(std::string_view name);
/// The other way round: "model.fp16.safetensors" for a model in one file.
std::string hf_variant_name(const HfVariant& variant);
std::string hf_variant_index_name(const HfVariant& variant);

/// Whether files of a Hugging Face checkpoint, or its index, have such names, whatever their numbers:
/// "pytorch_model-….bin".
bool is_hf_weights_name(std::string_view name);
/// "model.safetensors.index.json" or "pytorch_model.bin.index.json".
std::string hf_index_name(Format format);

}  // namespace reshard
