// Which permissions outputs get, and what a run may be denied.

#include "reshard/engine/publish/permissions.h"

#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "reshard/engine/execute.h"
#include "reshard/plan/job/request.h"
#include "support/checkpoints.h"
#include "support/fault_storage.h"
#include "support/layouts.h"
#include "support/local_files.h"
#include "support/refusals.h"
#include "support/requests.h"
#include "support/temp_dir.h"
#include "support/test_directories.h"
#include "support/unprivileged.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

constexpr fs::perms mode(unsigned bits) {
  return static_cast<fs::perms>(bits);
}

unsigned mode_of(const fs::path& path) {
  struct stat status {};
  REQUIRE(::stat(path.c_str(), &status) == 0);
  return status.st_mode & 07777;
}

/// While one exists, files are made with this umask.
struct Umask {
  explicit Umask(mode_t mask) : before(::umask(mask)) {}
  Umask(const Umask&) = delete;
  Umask& operator=(const Umask&) = delete;
  ~Umask() { ::umask(before); }
  mode_t before;
};

struct Model {
  explicit Model(std::size_t files = 1) {
    const TinyModel model;
    Random random(8);
    tensors = random_tensors(model, random);
    write_model(temp / "model", model, tensors, files);
    write_file(temp / "model/tokenizer/vocab.txt", "words");
  }
  /// Gives these to all weights and to the model's directory.
  void restrict(unsigned directory, unsigned weights) const {
    for (const auto& entry : fs::directory_iterator(temp / "model"))
      if (entry.path().extension() == ".safetensors") fs::permissions(entry.path(), mode(weights));
    fs::permissions(temp / "model", mode(directory));
  }
  Request request() const { return shard_request(temp / "model", temp / "out", 2); }
  TempDir temp;
  TensorMap tensors;
};

const fs::path kRank = "tensor_parallel_shards/tp_rank_01_pp_rank_00";

TEST_CASE("New outputs have no more permissions than the inputs, and than the umask leaves") {
  struct Case {
    mode_t mask;
    unsigned directory, weights;            // of the input
    unsigned made_directory, made_weights;  // of the output
  };
  const Case one = GENERATE(values<Case>({{0022, 0755, 0644, 0755, 0644},
                                          {0022, 0700, 0600, 0700, 0600},
                                          {0022, 0700, 0644, 0700, 0644},
                                          {0022, 0755, 0600, 0755, 0600},
                                          {0002, 0775, 0664, 0775, 0664},
                                          {0002, 0750, 0640, 0750, 0640},
                                          {0000, 0755, 0640, 0755, 0640},
                                          {0027, 0777, 0666, 0750, 0640},
                                          {0077, 0755, 0644, 0700, 0600},
                                          {0022, 0555, 0444, 0755, 0644},
                                          {0022, 02750, 0755, 0750, 0644},
                                          {0022, 0711, 0604, 0711, 0604}}));
  INFO(std::oct << "umask " << one.mask << ", directory " << one.directory << ", weights " << one.weights);
  const Model model;
  model.restrict(one.directory, one.weights);
  const Umask umask(one.mask);
  const fs::path output = model.temp / "deep/out";
  shard(shard_request(model.temp / "model", output, 2));
  for (const auto& entry : fs::recursive_directory_iterator(output)) {
    const fs::path path = entry.path().lexically_relative(output);
    INFO(path);
    const bool copied = path == "config.json" || *path.begin() == "tokenizer";
    const unsigned made = entry.is_directory() ? one.made_directory : one.made_weights;
    const unsigned copy = (entry.is_directory() ? one.made_directory & 0755 : 0644) & ~one.mask;
    CHECK(mode_of(entry.path()) == (copied ? copy : made));
  }
  CHECK(mode_of(output) == one.made_directory);
  CHECK(fs::exists(output / kRank / "model.safetensors"));
}

TEST_CASE("Copied files and their folders keep their mode as far as the umask leaves it, without special bits") {
  const Model model;
  const std::map<std::string, unsigned> modes{{"run.sh", 0755},     {"secret.txt", 0600}, {"read_only.txt", 0444},
                                              {"setuid.sh", 04755}, {"group.txt", 0640},  {"all.txt", 0666}};
  const fs::path tools = "tools/deep", made = model.temp / "out" / tools;
  for (const auto& [name, bits] : modes) {
    write_file(model.temp / "model" / tools / name, name);
    fs::permissions(model.temp / "model" / tools / name, mode(bits));
  }
  fs::permissions(model.temp / "model/tools", mode(0700));
  const mode_t mask = GENERATE(0022, 0027);
  const Umask umask(mask);
  Request request = model.request();
  request.companions = CompanionFiles::kAll;
  shard(request);
  for (const auto& [name, bits] : modes) {
    INFO(name);
    CHECK(mode_of(made / name) == (bits & 0777 & ~mask));
    CHECK(read_file(made / name) == name);
  }
  CHECK(mode_of(model.temp / "out/tools") == 0700);
  CHECK(mode_of(made) == (0755 & ~mask));
  CHECK(mode_of(model.temp / "out/tokenizer") == (0755 & ~mask));
}

TEST_CASE("A directory that is there keeps its mode, and shows no one what the inputs' directory hides from them") {
  struct Case {
    unsigned input, output;
    unsigned folder, weights, copy;  // of what is made in it
  };
  const Case one = GENERATE(values<Case>({{0700, 0755, 0700, 0600, 0600},
                                          {0750, 0755, 0750, 0640, 0640},
                                          {0700, 0700, 0700, 0644, 0644},
                                          {0755, 0700, 0755, 0644, 0644}}));
  INFO(std::oct << "input " << one.input << ", output " << one.output);
  const Model model;
  model.restrict(one.input, 0644);
  const fs::path out = model.temp / "out";
  fs::create_directories(out);
  fs::permissions(out, mode(one.output));
  shard(model.request());
  CHECK(mode_of(out) == one.output);
  for (const fs::path& folder : {fs::path("tokenizer"), kRank}) CHECK(mode_of(out / folder) == one.folder);
  CHECK(mode_of(out / kRank / "model.safetensors") == one.weights);
  for (const char* copied : {"config.json", "tokenizer/vocab.txt"}) CHECK(mode_of(out / copied) == one.copy);
}

/// The value of the extended attribute "user.owner"; empty if there is none.
std::string label_of(const fs::path& path) {
  char value[16];
  const ssize_t size = ::getxattr(path.c_str(), "user.owner", value, sizeof value);
  return {value, static_cast<std::size_t>(std::max<ssize_t>(size, 0))};
}

TEST_CASE("Directories that are exchanged keep their special bits, permissions and extended attributes") {
  const bool exchanges = GENERATE(true, false);
  CAPTURE(exchanges);
  const Model model;
  Request request = model.request();
  request.force = true;
  shard(request);
  const fs::path out = model.temp / "out", shards = out / "tensor_parallel_shards";
  const std::vector<std::pair<fs::path, unsigned>> modes{{out, 03775}, {shards, 01770}, {out / kRank, 0700}};
  for (const auto& [path, bits] : modes) {
    REQUIRE(::chmod(path.c_str(), bits) == 0);
    REQUIRE(::setxattr(path.c_str(), "user.owner", "team", 4, 0) == 0);
  }
  const auto before = local_storage().stamp(shards);
  TestStorage test(exchanges);
  execute(*plan_shard(local_storage(), request), {.stores = test.storage, .sync = false});
  CHECK(local_storage().stamp(shards) != before);
  for (const auto& [path, bits] : modes) {
    CHECK(mode_of(path) == bits);
    CHECK(label_of(path) == "team");
  }
  SECTION("an output directory whose attributes cannot be kept is not exchanged, and a note names the folder") {
    test.directories.keeps_attributes = false;
    const RunResult result = execute(*plan_shard(local_storage(), request), {.stores = test.storage, .sync = false});
    CHECK(mode_of(out) == 03775);
    CHECK(label_of(out) == "team");
    REQUIRE(result.notes.size() == 1);
    CHECK_THAT(result.notes[0], Says(shards.string() + ": its owner, permissions"));
  }
}

TEST_CASE("A folder of shards that is open to others does not show them what the inputs' directory hides") {
  const Model model;
  Request request = model.request();
  request.force = true;
  shard(request);
  for (const fs::path& path :
       {model.temp / "out", model.temp / "out/tensor_parallel_shards", model.temp / "out" / kRank})
    fs::permissions(path, mode(0755));
  model.restrict(0700, 0644);
  shard(request);
  CHECK(mode_of(model.temp / "out/tensor_parallel_shards") == 0755);
  CHECK(mode_of(model.temp / "out" / kRank / "model.safetensors") == 0600);
}

TEST_CASE("One private file among the weights makes all outputs private, and so does a private folder of shards") {
  const Model model(3);
  fs::permissions(model.temp / "model/model-00002-of-00003.safetensors", mode(0600));
  shard(model.request());
  CHECK(mode_of(model.temp / "out" / kRank / "model.safetensors") == 0600);
  CHECK(mode_of(model.temp / "out") == 0755);

  const fs::path folder = GENERATE(fs::path(), kRank.parent_path(), kRank);
  fs::permissions(model.temp / "out" / folder, mode(0750));
  consolidate(consolidate_request(model.temp / "out", model.temp / "whole"));
  CHECK(mode_of(model.temp / "whole") == 0750);
  CHECK(mode_of(model.temp / "whole/model.safetensors") == 0600);
  CHECK((read_model(model.temp / "whole") == model.tensors));
}

TEST_CASE("A config.json from elsewhere hides what it and its directory hide, whether it is copied or written anew") {
  struct Case {
    unsigned folder, config;                          // of the input
    bool existing;                                    // the output directory
    unsigned made_folder, made_config, made_weights;  // of the output
  };
  const Case one = GENERATE(values<Case>({{0755, 0644, false, 0755, 0644, 0644},
                                          {0755, 0600, false, 0755, 0600, 0644},
                                          {0700, 0600, false, 0700, 0600, 0644},
                                          {0700, 0644, false, 0700, 0644, 0644},
                                          {0755, 0600, true, 0755, 0600, 0644},
                                          {0700, 0644, true, 0755, 0600, 0600}}));
  const bool anew = GENERATE(false, true);
  INFO(std::oct << "folder " << one.folder << ", config.json " << one.config
                << (one.existing ? ", existing output" : "") << (anew ? ", anew" : ", copied"));
  const Model model;
  const fs::path out = model.temp / "out", other = model.temp / "other";
  fs::create_directories(other);
  std::string config = read_file(model.temp / "model/config.json");
  config.insert(config.find('{') + 1, "\"torch_dtype\": \"bfloat16\",");
  write_file(other / "config.json", config);
  fs::remove(model.temp / "model/config.json");
  fs::permissions(other / "config.json", mode(one.config));
  fs::permissions(other, mode(one.folder));
  if (one.existing) fs::create_directories(out);
  Request request = convert_request(model.temp / "model", out);
  request.source.config = other;
  if (anew) request.dtype = DType::kF32;
  const auto job = plan_convert(request);
  REQUIRE(job->copied_files.size() == (anew ? 0 : 1));
  execute(*job, unsynced());
  CHECK(mode_of(out) == one.made_folder);
  CHECK(mode_of(out / "config.json") == one.made_config);
  CHECK(mode_of(out / "model.safetensors") == one.made_weights);
}

TEST_CASE("An adapter_config.json that is written anew in another folder is as private as the one it is made of") {
  const TempDir temp;
  TinyModel model;
  model.layers = 1;
  write_file(temp / "model/config.json", model.config().dump());
  TensorMap tensors;
  Random random(8);
  const std::string mlp = "base_model.model.model.layers.0.mlp.";
  for (const auto& [linear, r] : std::map<std::string, std::uint64_t>{{"gate_proj", 1}, {"up_proj", 2}}) {
    tensors[mlp + linear + ".lora_A.weight"] = random_tensor(random, DType::kF32, {r, model.hidden});
    tensors[mlp + linear + ".lora_B.weight"] = random_tensor(random, DType::kF32, {model.intermediate, r});
  }
  write_safetensors(temp / "peft/adapter_model.safetensors", tensors);
  write_file(temp / "peft/adapter_config.json", R"({"peft_type": "LORA", "r": 1, "lora_alpha": 4,
    "rank_pattern": {"up_proj": 2}, "alpha_pattern": {"up_proj": 8}})");
  fs::permissions(temp / "peft/adapter_config.json", mode(0600));
  Request request = shard_request(temp / "model", temp / "out", 2);
  request.target.layout = layout("optimum"), request.target.format = Format::kPytorch;
  request.adapters = {temp / "peft"};
  request.target.lora_fuse = LoraFuse::kExact;
  shard(request);
  const fs::path fused = temp / "out/adapter_default";
  CHECK_THAT(read_file(fused / "adapter_config.json"), Says("gate_up_proj"));
  CHECK(mode_of(fused / "adapter_config.json") == 0600);
  CHECK(mode_of(fused / "adapter_config.unfused.json") == 0600);
  CHECK(mode_of(fused / "adapter_shards/model/dp_rank_00_tp_rank_00_pp_rank_00.pt") == 0644);

  fs::remove(fused / "adapter_config.unfused.json");  // as after training
  consolidate(consolidate_request(temp / "out", temp / "whole"));
  CHECK_THAT(read_file(temp / "whole/adapter_config.json"), !Says("gate_up_proj"));
  CHECK(mode_of(temp / "whole/adapter_config.json") == 0600);
  CHECK(mode_of(temp / "whole/adapter_model.safetensors") == 0644);
}

TEST_CASE("What a private index says stays private beside shards, and in the index that is made of it again") {
  const Model model(3);
  const fs::path index = model.temp / "model/model.safetensors.index.json";
  auto json = nlohmann::json::parse(read_file(index));
  json["metadata"]["author"] = "somebody";
  write_file(index, json.dump());
  fs::permissions(index, mode(0600));
  shard(model.request());
  CHECK(mode_of(model.temp / "out/reshard_index_metadata.json") == 0600);
  CHECK(mode_of(model.temp / "out" / kRank / "model.safetensors") == 0644);

  Request request = consolidate_request(model.temp / "out", model.temp / "whole");
  request.target.options.set_number("max-shard-size", 4000);
  request.target.format = Format::kPytorch;
  consolidate(request);
  CHECK_THAT(read_file(model.temp / "whole/pytorch_model.bin.index.json"), Says("somebody"));
  CHECK(mode_of(model.temp / "whole/pytorch_model.bin.index.json") == 0600);
}

TEST_CASE("Bits of a group go to that group alone, another one gets those of others") {
  // For a file of the input's group, and of another.
  const auto [bits, other_bits] = GENERATE(table<unsigned, unsigned>({{0640, 0600},
                                                                      {0750, 0700},
                                                                      {0775, 0755},
                                                                      {0664, 0644},
                                                                      {0660, 0600},
                                                                      {0644, 0644},
                                                                      {0604, 0604},
                                                                      {0751, 0711}}));
  INFO(std::oct << "mode " << bits);
  const AllowedMode allowed{bits, {7}, 0777};
  CHECK(allowed.for_group(7) == bits);
  CHECK(allowed.for_group(8) == other_bits);
  CHECK(allowed.for_any_group() == other_bits);
  AllowedMode both = allowed;
  both &= AllowedMode{0777, {8}, 0777};
  CHECK(both.for_group(7) == other_bits);
  CHECK(both.for_group(8) == other_bits);
  // What the umask takes from others, it does not take from the group.
  CHECK(AllowedMode{0664, {7}, 0750}.for_group(8) == 0640);
}

/// Another group than that of new files, to which this process may give files.
gid_t other_group() {
  if (::geteuid() == 0) return 65534;
  std::vector<gid_t> groups(static_cast<std::size_t>(::getgroups(0, nullptr)));
  REQUIRE(::getgroups(static_cast<int>(groups.size()), groups.data()) >= 0);
  const auto found = std::find_if(groups.begin(), groups.end(), [](gid_t group) { return group != ::getegid(); });
  REQUIRE(found != groups.end());  // it needs root, or a user of two groups
  return *found;
}

TEST_CASE("Outputs of another group than the inputs' are closed to it, and those of the same are open") {
  const Model model;
  const gid_t group = other_group();
  const auto give = [&](const fs::path& path) { REQUIRE(::chown(path.c_str(), static_cast<uid_t>(-1), group) == 0); };
  for (const char* name : {"model", "model/model.safetensors", "model/tokenizer/vocab.txt"}) give(model.temp / name);
  model.restrict(0750, 0640);
  fs::permissions(model.temp / "model/tokenizer/vocab.txt", mode(0640));
  const auto check = [&](const fs::path& output, unsigned folders, unsigned files) {
    shard(shard_request(model.temp / "model", output, 2));
    for (const fs::path& folder : {fs::path(), fs::path("tokenizer"), kRank})
      CHECK(mode_of(output / folder) == folders);
    for (const fs::path& file : {kRank / "model.safetensors", fs::path("tokenizer/vocab.txt")})
      CHECK(mode_of(output / file) == files);
  };
  check(model.temp / "out", 0700, 0600);
  CHECK(mode_of(model.temp / "out/config.json") == 0644);

  fs::create_directories(model.temp / "shared");
  give(model.temp / "shared");
  fs::permissions(model.temp / "shared", mode(02755));  // what is made in it is of its group
  check(model.temp / "shared/out", 02750, 0640);

  const fs::path open = model.temp / "open";  // its own group may enter it, which may not enter the model's
  fs::create_directories(open);
  fs::permissions(open, mode(0750));
  shard(shard_request(model.temp / "model", open, 2));
  for (const fs::path& file : {fs::path("config.json"), kRank / "model.safetensors"})
    CHECK(mode_of(open / file) == 0600);
}

TEST_CASE("While outputs grow, nobody else may look at them") {
  const bool existing = GENERATE(false, true);
  CAPTURE(existing);
  const Model model;
  if (existing) fs::create_directories(model.temp / "out");
  const fs::path home = existing ? model.temp / "out" : model.temp.path();
  std::size_t seen = 0;
  FaultStorage storage;
  storage.before = [&](FaultStorage::Operation, std::uint64_t) {
    for (const auto& entry : fs::directory_iterator(home)) {
      if (!entry.path().filename().string().starts_with(".")) continue;
      CHECK(mode_of(entry.path()) == 0700);
      ++seen;
    }
  };
  shard(model.request(), {.threads = 1, .stores = storage, .sync = false});
  CHECK(seen > 10);
  CHECK(mode_of(model.temp / "out") == 0755);
}

TEST_CASE("Outputs go into a directory that may be written to but not read, and are flushed to disk there too") {
  const bool existing = GENERATE(false, true);
  CAPTURE(existing);
  const Model model;
  const fs::path drop = model.temp / "drop", output = existing ? drop : drop / "out";
  fs::create_directories(drop);
  const Unprivileged nobody(model.temp.path());
  fs::permissions(drop, mode(0300));
  CHECK_NOTHROW(shard(shard_request(model.temp / "model", output, 2), RunOptions()));
  fs::permissions(drop, mode(0700));
  REQUIRE(fs::exists(output / "config.json"));
  CHECK(read_ranks(output).size() == 2);
  for (const auto& entry : fs::directory_iterator(drop)) CHECK(entry.path().filename().string().front() != '.');
}

TEST_CASE("A directory that may not be written to is refused before anything is made") {
  const Model model;
  fs::create_directories(model.temp / "out");
  const Unprivileged nobody(model.temp.path());
  fs::permissions(model.temp / "out", mode(0500));
  check_refused([&] { shard(model.request()); }, {.kind = ErrorKind::kIo, .path = model.temp / "out"});
  CHECK(fs::is_empty(model.temp / "out"));
  fs::permissions(model.temp / "out", mode(0700));
}

}  // namespace
}  // namespace reshard::test
