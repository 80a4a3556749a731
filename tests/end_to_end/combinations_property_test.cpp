// Random combinations in one directory: two forms of weights, an adapter beside a model or a run, an index and an
// overlay, files of other programs, downloads that did not finish. Every tensor and every file of the source is in the
// output with the right value, or an error or a note names what is left out.

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "reshard/layouts/interrupted_swap.h"
#include "support/catch.h"
#include "support/checkpoints.h"
#include "support/errors.h"
#include "support/local_files.h"
#include "support/requests.h"
#include "support/temp_dir.h"
#include "support/torch_files.h"
#include "support/trials.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

constexpr const char* kAdapterConfig =
    R"({"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"]})";

/// Tensors of the source, and the names by which a note may tell that they are left out.
struct Held {
  TensorMap tensors;
  std::vector<std::string> names;
};

/// A directory under construction, and what a conversion of it owes.
struct Combination {
  explicit Combination(std::uint64_t seed) : random(seed) {}

  bool may(std::uint64_t one_in) { return pick(random, 1, one_in) == 1; }
  void hold(TensorMap tensors, std::vector<std::string> names) {
    held.push_back({std::move(tensors), std::move(names)});
  }
  void write_others(const fs::path& path, const TensorMap& tensors) {
    path.extension() == ".safetensors" ? write_safetensors(source / path, tensors)
                                       : write_torch(source / path, tensors);
    const bool is_nested = path.has_parent_path();
    hold(tensors, {path.string(), (is_nested ? " " : "") + path.begin()->string()});
  }
  void write_foreign(const std::string& path) {
    write_file(source / path, path);
    foreign.insert(path);
  }

  TempDir temp;
  fs::path source = temp / "source";
  Random random;
  std::vector<Held> held;
  std::set<std::string> foreign;      // files without tensors
  std::vector<fs::path> read;         // weights that a conversion reads
  std::vector<std::string> must_say;  // the conversion must fail with these words
};

TensorMap random_adapter(Random& random) {
  TensorMap tensors;
  for (const auto& [letter, shape] : {std::pair("A", Dims{2, 16}), {"B", Dims{16, 2}}})
    tensors[std::string("base_model.model.model.layers.0.self_attn.q_proj.lora_") + letter + ".weight"] =
        random_tensor(random, DType::kF32, shape);
  return tensors;
}

/// The model in two numbered files; some tensors are replaced in an overlay, which the index names.
void write_overlaid(Combination& c, const TinyModel& model, const TensorMap& tensors) {
  TensorMap stale = tensors, overlay;
  std::vector<std::string> names;
  for (const auto& [name, tensor] : tensors) {
    if (!c.may(6)) continue;
    overlay[name] = tensor;
    stale[name] = random_tensor(c.random, tensor.dtype, tensor.shape);
    c.hold({{name, stale[name]}}, {name});
  }
  write_model(c.source, model, stale, 2);
  for (const char* name : {"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"})
    c.read.push_back(c.source / name);
  if (overlay.empty()) return;
  constexpr const char* kOverlay = "model-overlay-00001.safetensors";
  write_safetensors(c.source / kOverlay, overlay);
  const fs::path path = c.source / "model.safetensors.index.json";
  nlohmann::json index = nlohmann::json::parse(read_file(path));
  for (const auto& [name, tensor] : overlay) index["weight_map"][name] = kOverlay;
  write_file(path, index.dump());
}

/// Writes a model in one form.
void write_first(Combination& c) {
  const TinyModel model;
  TensorMap tensors = random_tensors(model, c.random);
  c.hold(tensors, {"there is also a sharded checkpoint in " + c.source.string()});  // whole weights take precedence
  switch (pick(c.random, 0, 4)) {
    case 0:
      write_model(c.source, model, tensors);
      c.read = {c.source / "model.safetensors"};
      break;
    case 1: write_overlaid(c, model, tensors); break;
    case 2:
      write_file(c.source / "config.json", model.config().dump());
      write_torch(c.source / "pytorch_model.bin", tensors);
      c.read = {c.source / "pytorch_model.bin"};
      break;
    case 3:
      write_model(c.temp / "model", model, tensors);
      convert(c.temp / "model", c.source, {.layout = "dcp"});
      c.read = {c.source / "__0_0.distcp"};
      break;
    default:
      write_model(c.temp / "model", model, tensors);
      shard(shard_request(c.temp / "model", c.source, 2));
      c.read = {c.source / "tensor_parallel_shards/tp_rank_00_pp_rank_00/model.safetensors"};
  }
}

/// Writes adapters into one directory, as PEFT does: the first, and others in folders.
void write_adapters(Combination& c) {
  const auto write = [&](const std::string& folder) {
    const TensorMap tensors = random_adapter(c.random);
    c.hold(tensors, {});
    write_file(c.source / folder / "adapter_config.json", kAdapterConfig);
    write_safetensors(c.source / folder / "adapter_model.safetensors", tensors);
    c.read.push_back(c.source / folder / "adapter_model.safetensors");
  };
  const bool has_own = !c.may(3);
  if (has_own) write("");
  for (const char* name : {"other", "third"})
    if (c.may(2)) write(name);
  if (c.read.empty()) write("other");
  if (!has_own || !c.may(3)) return;
  write_file(c.source / "checkpoint-5/adapter_config.json", kAdapterConfig);
  c.write_others("checkpoint-5/adapter_model.safetensors", random_adapter(c.random));
}

void add_to_model(Combination& c) {
  const TinyModel model;
  for (const char* name : {"pytorch_model.bin", "model.fp16.safetensors", "consolidated.safetensors", "extra.pt"})
    if (c.may(5) && !fs::exists(c.source / name)) c.write_others(name, random_tensors(model, c.random));
  if (c.may(4)) {
    c.write_others("adapter_model.safetensors", random_adapter(c.random));
    write_file(c.source / "adapter_config.json", kAdapterConfig);
  }
  if (c.may(4)) {
    c.write_others("lora/adapter_model.safetensors", random_adapter(c.random));
    write_file(c.source / "lora/adapter_config.json", kAdapterConfig);
  }
  if (c.may(5)) {
    write_model(c.source / "elsewhere", model, random_tensors(model, c.random));
    c.hold(read_tensors(c.source / "elsewhere/model.safetensors"), {"elsewhere"});
  }
  if (c.may(5)) write_file(c.source / ".reshard-AbCdEf/model.safetensors", "not an output");
  for (const char* name : {"train.py", "logs/train.log", "id_rsa", "demo.mp4", "README.md", "tokenizer.json",
                           "1_Pooling/config.json", "chat_template.jinja"})
    if (c.may(3)) c.write_foreign(name);
}

/// Spoils the weights that are read: an unfinished download, outputs that a killed run was about to replace, or a
/// parameter that ZeRO 3 has left empty.
void spoil(Combination& c) {
  const bool is_shards = fs::exists(c.source / ".metadata") || fs::exists(c.source / "tensor_parallel_shards");
  if (is_shards && find_whole(c.source)) return;  // others are read
  const fs::path& file = c.read[pick(c.random, 0, c.read.size() - 1)];
  if (c.may(4)) {
    const fs::path staging = c.source / ".reshard-XyZabc";
    write_file(staging / ".swap", swap_record({file.lexically_relative(c.source)}));
    c.must_say = {"a run was killed while it published its outputs"};
  } else if (c.may(2)) {
    const char* const suffixes[] = {".aria2", ".part", ".incomplete", ".crdownload"};
    const fs::path control = file.string() + suffixes[pick(c.random, 0, 3)];
    write_file(control, "");
    c.must_say = {file.filename().string(), "is unfinished", control.filename().string()};
  } else if (file.filename() == "model.safetensors" && file.parent_path() == c.source) {
    TensorMap tensors = read_tensors(file);
    auto emptied = tensors.begin();
    std::advance(emptied, pick(c.random, 0, tensors.size() - 1));
    emptied->second = {emptied->second.dtype, {0}, {}};
    write_safetensors(file, tensors);
    c.must_say = {emptied->first, "empty, as ZeRO 3 leaves"};
  }
}

/// The tensors of all files under a directory.
std::multimap<std::string, TensorData> tensors_under(const fs::path& directory) {
  std::multimap<std::string, TensorData> all;
  for (const auto& entry : fs::recursive_directory_iterator(directory))
    if (entry.path().extension() == ".safetensors")
      for (auto& [name, tensor] : read_tensors(entry.path())) all.emplace(name, std::move(tensor));
  return all;
}

bool says_any(const std::string& text, const std::vector<std::string>& names) {
  return std::any_of(names.begin(), names.end(),
                     [&](const std::string& name) { return text.find(name) != std::string::npos; });
}

/// CHECKs that all that the source holds is in the output or named in `notes`.
void check_kept(const Combination& c, const fs::path& output, const std::string& notes) {
  const auto found = tensors_under(output);
  for (const Held& held : c.held)
    for (const auto& [name, tensor] : held.tensors) {
      const auto [begin, end] = found.equal_range(name);
      const bool is_kept =
          std::any_of(begin, end, [&, &value = tensor](const auto& one) { return one.second == value; });
      INFO(name << " of " << (held.names.empty() ? std::string("all") : held.names.front()) << "; notes: " << notes);
      CHECK((is_kept || says_any(notes, held.names)));
    }
  for (const std::string& path : c.foreign) {
    INFO(path);
    const bool is_copied = fs::exists(output / path) && read_file(output / path) == path;
    CHECK((is_copied || says_any(notes, {path, fs::path(path).begin()->string() + "/"})));
  }
}

/// Converts the source. \returns whether it was read.
bool check_combination(Combination& c) {
  const Request request = convert_request(c.source, c.temp / "output", {.layout = "hf"});
  if (!c.must_say.empty()) {
    const Error error = error_of([&] { plan_convert(request); });
    CHECK(error.kind() == ErrorKind::kBadInput);
    for (const std::string& part : c.must_say) CHECK_THAT(error.what(), Says(part));
    CHECK_FALSE(error.hint().empty());
    return false;
  }
  const auto job = plan_convert(request);
  execute(*job, unsynced());
  check_kept(c, c.temp / "output", joined_notes(*job));
  return true;
}

TEST_CASE("Of whatever lies in one directory nothing is lost without an error or a note") {
  std::size_t read = 0, refused = 0;
  for (const std::uint64_t seed : seeds(400)) {
    CAPTURE(seed);
    Combination c(seed);
    const bool is_model = !c.may(4);
    if (is_model) {
      write_first(c);
      add_to_model(c);
    } else {
      write_adapters(c);
    }
    if (c.may(5)) spoil(c);
    (check_combination(c) ? read : refused) += 1;
  }
  if (!has_all_seeds()) return;
  CHECK(read > 250);
  CHECK(refused > 30);
}

}  // namespace
}  // namespace reshard::test
