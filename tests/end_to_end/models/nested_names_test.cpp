// Names that are nested deeper than the model's: a prefix before all of them or before the body alone, other words in
// place of the base model's, repeated words, wrappers inside. No tensor may be lost without an error.

#include <nlohmann/json.hpp>

#include "reshard/base/strings.h"
#include "support/architectures.h"
#include "support/checkpoints.h"
#include "support/input.h"
#include "support/local_files.h"
#include "support/refusals.h"
#include "support/spoilers.h"
#include "support/trained.h"
#include "support/trials.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

constexpr const char* kHeadName = "lm_head.weight";
constexpr const char* kEmbeddingName = "model.embed_tokens.weight";

/// Without NaN, whose bits a cast changes.
TensorMap without_nans(TensorMap tensors) {
  for (auto& [name, data] : tensors)
    if (data.dtype == DType::kBF16)
      for (std::size_t i = 1; i < data.bytes.size(); i += 2) data.bytes[i] = static_cast<char>(data.bytes[i] & 0xBF);
  return tensors;
}

/// The tensors with `to` in place of `from` at the beginning of names.
TensorMap nested(const TensorMap& tensors, const std::string& from, const std::string& to) {
  TensorMap renamed;
  for (const auto& [name, data] : tensors)
    renamed[name.starts_with(from) ? to + name.substr(from.size()) : name] = data;
  return renamed;
}

/// The tensors with `word` before each attention.
TensorMap wrapped_inside(const TensorMap& tensors, const std::string& word) {
  TensorMap renamed;
  for (const auto& [name, data] : tensors) {
    const std::size_t at = name.find("self_attn.");
    renamed[at == name.npos ? name : name.substr(0, at) + word + name.substr(at)] = data;
  }
  return renamed;
}

/// One to three words with dots.
std::string random_prefix(Random& random, std::initializer_list<const char*> words) {
  std::string prefix;
  for (std::uint64_t count = pick(random, 1, 3); count > 0; --count)
    prefix += std::string(words.begin()[random() % words.size()]) + ".";
  return prefix;
}

const auto kAnyWords = {"model", "module", "policy", "foo", "bar", "language_model", "thinker", "state_dict", "body"};

/// A model whose names are nested.
struct NestedModel {
  enum class Nesting { kAll, kBody, kReplaced };

  NestedModel(Random& random, const fs::path& directory, const std::string& kind) : tiny(random_model(random)) {
    tensors = without_nans(random_tensors(tiny, random));
    std::erase_if(tensors, [](const auto& one) { return one.first.ends_with("inv_freq"); });
    if (random() % 4 == 0) {  // another head
      tensors.erase(kHeadName);
      tensors["score.weight"] = without_nans({{"", random_tensor(random, DType::kBF16, {2, tiny.hidden})}}).at("");
    } else if (random() % 4 == 0) {  // a head of its own, though config.json declares it tied
      tiny.tied = true;
      tensors[kHeadName] = without_nans({{"", random_tensor(random, DType::kBF16, {tiny.vocab, tiny.hidden})}}).at("");
      tensors[kHeadName].bytes[0] = static_cast<char>(tensors.at(kEmbeddingName).bytes[0] ^ 1);
    }
    write_model(directory, tiny, tensors);
    if (random() % 4 == 0) add_tokens(random);
    nesting = static_cast<Nesting>(random() % (kind == "hf" ? 2 : 3));
    prefix = random_prefix(random, kAnyWords);
    stored = random() % 2 ? wrapped_inside(tensors, "_checkpoint_wrapped_module.") : tensors;
    if (nesting == Nesting::kAll) stored = nested(stored, "", prefix);
    if (nesting == Nesting::kBody) stored = nested(stored, "model.", prefix + "model.");
    if (nesting == Nesting::kReplaced) stored = nested(stored, "model.", prefix);
  }

  /// Adds tokens that config.json does not have, as training does.
  void add_tokens(Random& random) {
    tokens = tiny.vocab + pick(random, 1, 7);
    for (const char* name : {kEmbeddingName, kHeadName})
      if (const auto found = tensors.find(name); found != tensors.end())
        found->second = without_nans({{"", random_tensor(random, found->second.dtype, {tokens, tiny.hidden})}}).at("");
  }

  bool has_head() const { return tensors.count(kHeadName) > 0 || tensors.count("score.weight") > 0; }

  TinyModel tiny;
  std::uint64_t tokens = tiny.vocab;
  TensorMap tensors;  // as the model has them
  TensorMap stored;
  Nesting nesting = Nesting::kAll;
  std::string prefix;
};

void write_stored(const std::string& kind, const fs::path& directory, const TensorMap& stored, Random& random) {
  fs::create_directories(directory);
  if (kind == "hf")
    write_safetensors(directory / "model.safetensors", stored);
  else
    write_trained(kind, directory, stored, 0, random);
}

RequestFields fields_for(const std::string& kind, const fs::path& config) {
  RequestFields fields{.layout = "hf", .config = config};
  if (kind == "zero-2") fields.source_options = {"weights=model"};
  return fields;
}

TEST_CASE("Tensors under nested names get the names of their model, whatever stores them") {
  std::vector<std::string> kinds(std::begin(kTrainedKinds), std::end(kTrainedKinds));
  kinds.emplace_back("hf");
  for (const std::uint64_t seed : seeds(600)) {
    Random random(seed);
    const TempDir temp;
    const std::string kind = kinds[random() % kinds.size()];
    const NestedModel model(random, temp / "model", kind);
    INFO("RESHARD_TEST_SEED=" << seed << " " << kind << " " << model.prefix << " " << static_cast<int>(model.nesting)
                              << " " << model.tiny.model_type << (model.tiny.tied ? ", tied" : ""));
    write_stored(kind, temp / "run", model.stored, random);
    TensorMap whole = converted(temp / "run", temp / "out", fields_for(kind, temp / "model"));
    const bool is_base = model.nesting == NestedModel::Nesting::kReplaced && !model.has_head();
    if (is_base) whole = nested(nested(whole, "model.", ""), "", "model.");  // a base model may be saved alone
    CHECK((whole == model.tensors));
    const auto config = nlohmann::json::parse(read_file(temp / "out/config.json"));
    const bool is_tied = model.tiny.tied && model.tensors.count(kHeadName) == 0;
    CHECK(config["tie_word_embeddings"] == is_tied);
    CHECK(config["vocab_size"] == model.tokens);
  }
}

TEST_CASE("The head of a larger model stays, and repeated words before its language model are read once") {
  for (const std::uint64_t seed : seeds(40)) {
    Random random(seed);
    const TempDir temp;
    const std::string kind = kTrainedKinds[random() % std::size(kTrainedKinds)];
    const TensorMap tensors = without_nans(write_architecture(architecture("qwen3_vl_own_head"), temp / "model"));
    REQUIRE(tensors.count(kHeadName) == 1);
    TensorMap stored = tensors;
    std::string repeated = "model.language_model.";
    for (std::uint64_t times = pick(random, 0, 2); times > 0; --times) repeated += "language_model.";
    stored = nested(stored, "model.language_model.", repeated);
    if (random() % 2) stored = nested(stored, "model.", "model.model.");
    INFO("RESHARD_TEST_SEED=" << seed << " " << kind << " " << repeated);
    write_stored(kind, temp / "run", stored, random);
    CHECK((converted(temp / "run", temp / "out", fields_for(kind, temp / "model")) == tensors));
  }
}

TEST_CASE("A head behind a prefix that the body lacks is refused, and rules for names give it its own") {
  for (const std::string kind : kTrainedKinds) {
    CAPTURE(kind);
    Random random(5);
    const TempDir temp;
    const TinyModel tiny{.model_type = "qwen3"};
    const TensorMap tensors = without_nans(random_tensors(tiny, random));
    write_model(temp / "model", tiny, tensors);
    TensorMap stored = nested(nested(tensors, "model.", "net.model."), "lm_head.", "other.lm_head.");
    write_stored(kind, temp / "run", stored, random);
    const RequestFields fields = fields_for(kind, temp / "model");
    check_refused([&] { converted(temp / "run", temp / "out", fields); },
                  {.says = {"other.lm_head.weight", "may be the model's lm_head.weight"},
                   .hint = "`rename`",
                   .unwritten = temp / "out"});
    Request request = convert_request(temp / "run", temp / "out", fields);
    request.names.renames.push_back(parse_rename("rename", "^(model\\.)?(net|other)\\.="));
    convert(request);
    CHECK((read_model(temp / "out") == tensors));
  }
}

TEST_CASE("A head under a further prefix or another name is refused, and a rule for names gives it its own") {
  std::vector<std::string> kinds(std::begin(kTrainedKinds), std::end(kTrainedKinds));
  kinds.emplace_back("hf");
  for (const std::string& kind : kinds)
    for (const std::string head : {"head.lm_head.weight", "output.weight"})
      for (const nlohmann::json& tied : {nlohmann::json(false), nlohmann::json(), nlohmann::json(true)})
        for (const std::string prefix : {"", "model.", "module."}) {
          CAPTURE(kind, head, tied.dump(), prefix);
          Random random(5);
          const TempDir temp;
          const TinyModel tiny{.model_type = "qwen3"};
          const TensorMap tensors = without_nans(random_tensors(tiny, random));
          write_model(temp / "model", tiny, tensors);
          merge_json(temp / "model/config.json", {{"tie_word_embeddings", tied}});
          const TensorMap named = nested(tensors, kHeadName, head);
          write_stored(kind, temp / "run", nested(named, "", prefix), random);
          Request request = convert_request(temp / "run", temp / "out", fields_for(kind, temp / "model"));
          if (tied == true && (head == "output.weight" || kind == "hf")) {  // may be a head of another kind
            CHECK_THAT(joined_notes(*plan_convert(request)), Says(head));
            continue;
          }
          check_refused([&] { convert(request); }, {.says = {kHeadName, head}, .unwritten = temp / "out"});
          request.names.renames.push_back(parse_rename("rename", "^.*" + head + "=lm_head.weight"));
          convert(request);
          CHECK((read_model(temp / "out") == tensors));
        }
}

TEST_CASE("A head that config.json does not tie, and no file has, is an error, unless tensors may be missing") {
  std::vector<std::string> kinds(std::begin(kTrainedKinds), std::end(kTrainedKinds));
  kinds.emplace_back("hf");
  for (const std::string& kind : kinds) {
    CAPTURE(kind);
    Random random(6);
    const TempDir temp;
    const TinyModel tiny{.model_type = "qwen3"};
    TensorMap tensors = without_nans(random_tensors(tiny, random));
    write_model(temp / "model", tiny, tensors);
    tensors.erase(kHeadName);
    write_stored(kind, temp / "run", tensors, random);
    const RequestFields fields = fields_for(kind, temp / "model");
    check_refused(
        [&] { converted(temp / "run", temp / "out", fields); },
        {.says = {kHeadName, "missing"}, .hint = "\"tie_word_embeddings\" to true", .unwritten = temp / "out"});
    Request request = convert_request(temp / "run", temp / "out", fields);
    request.allow_missing = true;
    CHECK_THAT(joined_notes(*plan_convert(request)), Says("is missing: lm_head.weight"));
    convert(request);
    CHECK((read_model(temp / "out") == tensors));
    CHECK(nlohmann::json::parse(read_file(temp / "out/config.json"))["tie_word_embeddings"] == false);
    merge_json(temp / "model/config.json", {{"tie_word_embeddings", true}});
    CHECK((converted(temp / "run", temp / "tied", fields) == tensors));
  }
}

TEST_CASE("Layers of multi-token prediction that the files lack are noted by every command") {
  const TempDir temp;
  TensorMap tensors = write_architecture(architecture("glm4_moe_own_head"), temp / "model");
  std::string last;
  for (const auto& [name, data] : tensors)
    if (name.ends_with("eh_proj.weight")) last = name.substr(0, name.size() - std::string("eh_proj.weight").size());
  REQUIRE_FALSE(last.empty());
  std::erase_if(tensors, [&](const auto& one) { return one.first.starts_with(last); });
  write_safetensors(temp / "model/model.safetensors", tensors);
  Random random(7);
  write_trained("fsdp-ranks", temp / "run", without_nans(tensors), 0, random);
  const auto says = Says("has no tensors of layer");
  CHECK_THAT(joined_notes(*plan_convert(convert_request(temp / "model", temp / "out", {.layout = "hf"}))), says);
  CHECK_THAT(joined_notes(*plan_convert(convert_request(temp / "model", temp / "out", {.layout = "dcp"}))), says);
  CHECK_THAT(
      joined_notes(*plan_consolidate(consolidate_request(temp / "run", temp / "out", {.config = temp / "model"}))),
      says);
  const std::string notes = joined_notes(*plan_shard(shard_request(temp / "model", temp / "out", 2)));
  CHECK_THAT(notes, says);
  CHECK(notes.find("has no tensors of layer") == notes.rfind("has no tensors of layer"));
}

}  // namespace
}  // namespace reshard::test
