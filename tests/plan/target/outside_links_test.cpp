// Links in a checkpoint that lead out of it.

#include "reshard/plan/target/outside_links.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "support/checkpoints.h"
#include "support/layouts.h"
#include "support/local_files.h"
#include "support/models.h"
#include "support/refusals.h"
#include "support/temp_dir.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

/// A model in model/, next to a secret file.
struct LinkedModel {
  LinkedModel() {
    Random random(5);
    tensors = random_tensors(model, random);
    write_model(temp / "model", model, tensors);
    write_file(temp / "secret", R"({"a": "private key"})");
  }
  ConvertRequest request(const Layout* kind = nullptr) const {
    ConvertRequest request = convert_request(temp / "model", temp / "out");
    if (kind != nullptr) request.target.layout = kind;
    if (kind != nullptr && kind->traits().has_ranks && !kind->traits().needs_no_mesh) request.target.tp = 2;
    return request;
  }

  TempDir temp;
  TinyModel model;
  TensorMap tensors;
};

bool has_note(const std::vector<std::string>& notes, const std::string& note) {
  return std::find(notes.begin(), notes.end(), note) != notes.end();
}

TEST_CASE("A companion that is a link to outside of the model is left out, and named in a note") {
  const LinkedModel model;
  fs::create_symlink(model.temp / "secret", model.temp / "model/vocab.txt");
  const auto alone = plan_convert(model.request());
  CHECK(has_note(alone->notes, "a link to a file outside of the model is left out: vocab.txt"));
  fs::create_directories(model.temp / "model/sub");
  fs::create_symlink("../../secret", model.temp / "model/sub/merges.txt");
  for (const Layout* const kind : {layout("hf"), layout("ranks"), layout("dcp")}) {
    INFO(kind->traits().name);
    ConvertRequest request = model.request(kind);
    request.output_directory = model.temp / kind->traits().name;
    const auto job = plan_convert(request);
    CHECK(has_note(job->notes, "links to files outside of the model are left out: sub/merges.txt, vocab.txt"));
    execute(*job, unsynced());
    CHECK(fs::exists(request.output_directory / "config.json"));
    CHECK_FALSE(fs::exists(request.output_directory / "vocab.txt"));
    CHECK_FALSE(fs::exists(request.output_directory / "sub/merges.txt"));
  }
  const auto sharded = plan_shard(shard_request(model.temp / "model", model.temp / "shards", 2));
  CHECK(has_note(sharded->notes, "links to files outside of the model are left out: sub/merges.txt, vocab.txt"));
}

TEST_CASE("Links inside the model and into the blobs of the hub's cache are followed") {
  const LinkedModel model;
  const fs::path cache = model.temp / "models--org--name", snapshot = cache / "snapshots/0a1b";
  fs::create_directories(snapshot / "sub");
  fs::rename(model.temp / "model", cache / "blobs");
  write_file(cache / "blobs/tokens", "tokens");
  for (const char* name : {"config.json", "model.safetensors"})
    fs::create_symlink(fs::path("../../blobs") / name, snapshot / name);
  fs::create_symlink("../../../blobs/tokens", snapshot / "sub/tokenizer.json");
  write_file(snapshot / "own.txt", "own");
  fs::create_symlink("own.txt", snapshot / "link.txt");
  // A directory that huggingface_hub before 0.23 filled with links into its cache.
  fs::create_directories(model.temp / "local");
  for (const char* name : {"config.json", "model.safetensors", "tokens"})
    fs::create_symlink(cache / "blobs" / name, model.temp / "local" / name);
  fs::create_directory_symlink(snapshot, model.temp / "linked");
  for (const fs::path& source : {snapshot, model.temp / "linked", model.temp / "local"}) {
    INFO(source.string());
    const TempDir out;
    convert(convert_request(source, out / "out"));
    CHECK((read_model(out / "out") == model.tensors));
    const bool local = source == model.temp / "local";
    for (const char* name : {"sub/tokenizer.json", "link.txt"}) CHECK(fs::exists(out / "out" / name) != local);
    if (local) CHECK(read_file(out / "out/tokens") == "tokens");
  }
}

TEST_CASE("A config.json that is a link to outside of the model is refused, unless the user names it") {
  const LinkedModel model;
  fs::create_directories(model.temp / "elsewhere");
  fs::rename(model.temp / "model/config.json", model.temp / "elsewhere/config.json");
  fs::create_symlink("../elsewhere/config.json", model.temp / "model/config.json");
  ConvertRequest request = model.request();
  for (const bool cast : {false, true}) {
    INFO(cast);
    if (cast) request.dtype = DType::kF32;
    check_refused([&] { plan_convert(request); }, {.path = model.temp / "model/config.json",
                                                   .says = "is a link to outside of the model, to " +
                                                           fs::canonical(model.temp / "elsewhere/config.json").string(),
                                                   .hint = "`config`"});
  }
  for (const fs::path& config : {model.temp / "elsewhere", model.temp / "elsewhere/config.json"}) {
    request.source.config = config;
    CHECK_NOTHROW(plan_convert(request));
  }
}

TEST_CASE("A rank file that is a link to outside of the checkpoint is refused by name, in every layout of ranks") {
  const LinkedModel model;
  for (const Layout* const kind : layouts()) {
    if (!kind->traits().has_ranks || !kind->traits().is_written()) continue;
    INFO(kind->traits().name);
    ConvertRequest request = model.request(kind);
    request.output_directory = model.temp / kind->traits().name / "ckpt";
    convert(request);
    const Checkpoint checkpoint = read_checkpoint(request.output_directory, {.use = ConfigUse::kLenient});
    const fs::path file = checkpoint.map.files.back().path;
    const fs::path outside = model.temp / kind->traits().name / ("moved" + file.extension().string());
    fs::rename(file, outside);
    fs::create_symlink(outside, file);
    check_refused(
        [&] { plan_convert(convert_request(request.output_directory, model.temp / "out")); },
        {.path = file, .says = "is a link to outside of the checkpoint, to " + fs::canonical(outside).string()});
    fs::remove(file);
    const fs::path inside = request.output_directory / ("moved" + file.extension().string());
    fs::rename(outside, inside);
    fs::create_symlink(fs::absolute(inside), file);
    CHECK_NOTHROW(read_checkpoint(request.output_directory, {.use = ConfigUse::kLenient}));
  }
}

TEST_CASE("Linked folders, pipes, sockets and links to nowhere are named in notes, whatever their names") {
  const LinkedModel model;
  const fs::path directory = model.temp / "model";
  write_file(model.temp / "tok/merges.txt", "a b");
  fs::create_directory_symlink("../tok", directory / "tok");
  fs::create_directory_symlink(".", directory / "itself");
  fs::create_symlink("nowhere", directory / "old.safetensors");
  REQUIRE(::mkfifo((directory / "pipe.json").c_str(), 0600) == 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const auto before = fs::current_path();
  fs::current_path(directory);  // names of sockets are short
  std::string("socket").copy(address.sun_path, sizeof address.sun_path - 1);
  const int socket = ::socket(AF_UNIX, SOCK_STREAM, 0);
  REQUIRE(::bind(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  ::close(socket);
  fs::current_path(before);
  const auto job = plan_convert(model.request());
  CHECK(has_note(job->notes, "a folder that is a link is left out: tok"));
  CHECK(has_note(job->notes, "a link that leads nowhere is left out: old.safetensors"));
  CHECK(has_note(job->notes, "entries that are no regular files are left out: pipe.json, socket"));
}

}  // namespace
}  // namespace reshard::test
