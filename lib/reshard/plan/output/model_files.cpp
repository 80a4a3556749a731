#include "reshard/plan/output/model_files.h"

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <utility>

#include "reshard/base/error.h"
#include "reshard/base/json.h"
#include "reshard/base/pattern.h"
#include "reshard/base/strings.h"
#include "reshard/io/text_file.h"
#include "reshard/specs/config/model_config.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

/// Purpose of a file, as far as a caller distinguishes it.
enum class Use : std::uint8_t { kTokenizer, kTokenizerSetting, kProcessor, kOther };

struct ModelFile {
  Use use;
  std::string_view pattern;  // matches the whole path relative to the model's directory
};

constexpr ModelFile kModelFiles[] = {
    // The model itself, its task on ModelScope, and its sizes as Meta and Mistral store them.
    {Use::kOther, R"(config\.json|configuration\.json|params\.json)"},
    // Vocabularies: tokenizer.json, vocab.txt, merges.txt, spiece.model, bpe.codes, tokenizer.model.v3, tekken.json, and
    // those of some older tokenizers of Transformers: LUKE, BERTweet and PhoBERT, FSMT, Blenderbot.
    {Use::kTokenizer,
     R"((tokenizer|vocab|merges|spiece|sentencepiece|bpe|tekken|entity_vocab|emoji|dict|encoder)[^/]*\.(json|jsonl|txt|model|bpe|codes|vocab|v\d\w*))"},
    // The same under the model's own name: qwen.tiktoken, ice_text.model; Marian's source.spm.
    {Use::kTokenizer, R"([^/]*\.(tiktoken|model|spm))"},
    {Use::kTokenizerSetting, R"((special_tokens_map|added_tokens)[^/]*\.json)"},
    // chat_template.jinja or .json, and the named ones that Transformers saves in a folder.
    {Use::kTokenizerSetting, R"(chat_template[^/]*|[^/]*\.jinja|(additional_)?chat_templates/[^/]*\.jinja)"},
    // Images, audio and video: preprocessor_config.json, processor_config.json, video_preprocessor_config.json.
    {Use::kProcessor, R"(([^/]*_)?(pre)?processor_config\.json|feature_extractor[^/]*\.json)"},
    {Use::kProcessor, R"(generation_config\.json)"},
    // Components with a folder of their own, as in pipelines of Diffusers.
    {Use::kOther, R"((tokenizer|processor|image_processor|feature_extractor|scheduler)(_\d)?/[^/]*)"},
    // The second tokenizer of InstructBLIP.
    {Use::kTokenizer, R"(qformer_tokenizer/[^/]*)"},
    // Whisper's spelling, and the alphabet of Wav2Vec2.
    {Use::kOther, R"(normalizer\.json|alphabet\.json)"},
    // Quantisation as AutoGPTQ, AutoAWQ, ModelOpt and ModelSlim store it, scales of the cache, and the recipe of
    // llm-compressor.
    {Use::kOther, R"((quantize|quant|hf_quant|quantization)_config\.json|quant_model_description[^/]*\.json)"},
    {Use::kOther, R"(kv_cache_scales\.json|recipe\.yaml)"},
    // Mistral's prompts.
    {Use::kOther, R"([A-Z_]*SYSTEM_PROMPT[^/]*\.txt)"},
    // Sentence-Transformers: its list of modules, and the settings of each, such as 1_Pooling/config.json.
    {Use::kOther, R"(modules\.json|config_sentence_transformers\.json|sentence_\w+_config\.json|\d+_\w+/config\.json)"},
    // A decoding method that Transformers runs from the model's directory.
    {Use::kOther, R"(custom_generate/[^/]*\.(py|txt))"},
    // For people: a description, and the terms of use.
    {Use::kOther,
     R"((?i)(readme|model[_-]?card|(third[_-]?party[_-]?)?notices?|copying|citation|use_policy|terms|([^/.]*[_-])?licen[cs]e)([^/.]*|[^/]*\.(md|txt|rst|pdf|html|cff|llama\w*))|licen[cs]es/[^/]*)"},
    // Transformers' Trainer saves these with each step.
    {Use::kOther, R"(trainer_state\.json|training_args\.bin)"},
};

/// Patterns of the table, compiled once.
const std::vector<std::pair<Use, Pattern>>& patterns() {
  static const auto kPatterns = [] {
    std::vector<std::pair<Use, Pattern>> compiled;
    for (const ModelFile& row : kModelFiles) compiled.emplace_back(row.use, Pattern(row.pattern));
    return compiled;
  }();
  return kPatterns;
}

template <typename Wanted>
bool matches(const std::string& relative, Wanted&& wanted) {
  return std::any_of(patterns().begin(), patterns().end(),
                     [&](const auto& row) { return wanted(row.first) && row.second.matches_all_of(relative); });
}

/// Adds the texts at any depth below a member called `key` that may name a class in a module.
void add_classes(const Json& value, std::string_view key, bool is_below, std::vector<std::string>& texts) {
  if (is_below && value.is_string() && value.get_ref<const std::string&>().find('.') != std::string::npos)
    texts.push_back(value.get<std::string>());
  if (!value.is_structured()) return;
  for (const auto& [name, inner] : value.items())
    add_classes(inner, key, is_below || (value.is_object() && name == key), texts);
}

/// Returns the words of Python's list of imported names, without their aliases.
std::vector<std::string> imported_names(std::string_view list) {
  std::vector<std::string> names;
  for (const std::string& item : split(std::string(list), ',')) {
    const std::size_t begin = item.find_first_not_of(" \t\r\n(\\");
    if (begin == item.npos) continue;
    names.push_back(item.substr(begin, item.find_first_of(" \t\r\n)\\#;", begin) - begin));
  }
  return names;
}

/// Returns the modules that a Python file may import relatively, as paths without an extension. `folder` contains the
/// file. Some may be names of classes instead.
std::vector<fs::path> imported_modules(const std::string& text, const fs::path& folder) {
  constexpr std::string_view kFrom = "from ", kImport = "import";
  std::vector<fs::path> modules;
  for (std::size_t at = 0; (at = text.find(kFrom, at)) != text.npos; at += kFrom.size()) {
    const std::size_t line = text.find_last_of('\n', at) + 1;  // 0 in the first line
    const std::size_t dots = text.find_first_not_of(' ', at + kFrom.size());
    if (text.find_first_not_of(" \t", line) != at || dots == text.npos || text[dots] != '.') continue;
    std::size_t name = dots;
    fs::path module = folder;
    while (name < text.size() && text[name] == '.')
      if (name++ > dots) module = module.parent_path();
    const std::size_t name_end = std::min(text.find_first_of(" \t\n", name), text.size());
    for (const std::string& part : split(text.substr(name, name_end - name), '.')) module /= part;
    modules.push_back(module);
    const std::size_t import = text.find_first_not_of(" \t", name_end);
    if (import == text.npos || text.compare(import, kImport.size(), kImport) != 0) continue;
    const std::size_t list = import + kImport.size();
    const std::size_t first = text.find_first_not_of(" \t", list);
    const bool in_brackets = first != text.npos && text[first] == '(';
    const std::size_t list_end = std::min(text.find(in_brackets ? ')' : '\n', list), text.size());
    for (const std::string& imported : imported_names(std::string_view(text).substr(list, list_end - list)))
      modules.push_back(module / imported);
  }
  return modules;
}

/// A config and the key below which it names classes as "module.Class".
struct CodeKey {
  const char* config;
  std::string_view key;
};
constexpr CodeKey kCodeKeys[] = {
    {kConfigFile, "auto_map"},
    {kConfigFile, "impl"},  // in custom_pipelines
    {"tokenizer_config.json", "auto_map"},
    {"processor_config.json", "auto_map"},
    {"preprocessor_config.json", "auto_map"},
    {"video_preprocessor_config.json", "auto_map"},
    {"modules.json", "type"},  // Sentence-Transformers
};

/// Returns the modules that the configs name, as paths without an extension.
std::vector<fs::path> named_modules(Files& files, const fs::path& directory) {
  std::vector<std::string> names;
  for (const auto& [config, key] : kCodeKeys) {
    try {
      if (files.is_file(directory / config))
        add_classes(read_json_file(files, directory / config, kMaxConfigBytes, JsonDialect::kPython), key, false,
                    names);
    } catch (const Error& error) {
      if (is_disk_fault(error)) throw;
    }
  }
  std::vector<fs::path> modules;
  for (const std::string& name : names) {
    // In another repository, or in the program itself.
    if (name.find("--") != name.npos || name.starts_with("sentence_transformers.")) continue;
    fs::path& module = modules.emplace_back();
    for (const std::string& part : split(name.substr(0, name.rfind('.')), '.')) module /= part;
  }
  return modules;
}

/// Whether a path could be a module in the directory, and not outside of it.
bool is_module(const fs::path& path) {
  return !path.empty() && path.is_relative() && std::none_of(path.begin(), path.end(), [](const fs::path& part) {
    return part.empty() || part.string().starts_with(".");
  });
}

}  // namespace

bool is_tokenizer(const std::string& file_name) {
  return matches(file_name, [](Use use) { return use == Use::kTokenizer; });
}

bool is_tokenizer_setting(const std::string& file_name) {
  return matches(file_name, [](Use use) { return use == Use::kTokenizerSetting || use == Use::kProcessor; });
}

bool is_processor(const std::string& file_name) {
  return matches(file_name, [](Use use) { return use == Use::kProcessor; });
}

bool belongs_to_model(const std::string& relative) {
  return matches(relative, [](Use) { return true; });
}

ModelCode model_code(Files& files, const fs::path& directory) {
  constexpr std::uint64_t kMaxCodeBytes = std::uint64_t{1} << 20;
  constexpr std::size_t kMostFiles = 256;  // models with code of their own have up to 20
  std::set<fs::path> found, tried;
  const std::vector<fs::path> named = named_modules(files, directory);
  std::vector<fs::path> modules = named;
  const auto read = [&](const fs::path& file) {
    if (found.size() >= kMostFiles || !tried.insert(file).second) return;
    std::string text;
    try {
      if (!files.is_file(directory / file)) return;
      text = read_text_file(files, directory / file, kMaxCodeBytes);
    } catch (const Error& error) {
      if (is_disk_fault(error)) throw;
      return;
    }
    found.insert(file);
    for (fs::path& module : imported_modules(text, file.parent_path())) modules.push_back(std::move(module));
  };
  while (!modules.empty()) {
    const fs::path module = std::move(modules.back());
    modules.pop_back();
    if (!is_module(module)) continue;
    fs::path file = module;
    read(file += ".py");
    for (fs::path package = module; !package.empty(); package = package.parent_path()) read(package / "__init__.py");
  }
  std::set<fs::path> missing;
  for (const fs::path& module : named) {
    fs::path file = module;
    file += ".py";
    if (is_module(module) && found.count(file) == 0 && found.count(module / "__init__.py") == 0) missing.insert(file);
  }
  return {{found.begin(), found.end()}, {missing.begin(), missing.end()}};
}

}  // namespace reshard
