// Links in a checkpoint that lead out of it.

#include "reshard/plan/output/outside_links.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "support/checkpoints.h"
#include "support/input.h"
#include "support/layouts.h"
#include "support/local_files.h"
#include "support/refusals.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

/// A model in model/, next to a secret file.
struct LinkedModel : Input {
  LinkedModel() : Input({}, {}, 5) { write_file(temp / "secret", R"({"a": "private key"})"); }
  Request request(const char* kind = "hf", const fs::path& output = "out") const {
    const LayoutTraits& traits = layout(kind)->traits();
    RequestFields fields{.layout = kind};
    if (traits.has_ranks() && !traits.needs_no_mesh()) fields.tp = 2;
    return convert_request(temp / "model", temp / output, fields);
  }
};

TEST_CASE("A companion that is a link to outside of the model is left out, and named in a note") {
  const LinkedModel model;
  fs::create_symlink(model / "secret", model / "model/vocab.txt");
  CHECK_THAT(joined_notes(*plan_convert(model.request())),
             Says("a link to a file outside the model is left out: vocab.txt\n"));
  fs::create_directories(model / "model/tokenizer");
  fs::create_symlink("../../secret", model / "model/tokenizer/merges.txt");
  for (const char* kind : {"hf", "ranks", "dcp"}) {
    INFO(kind);
    const auto job = plan_convert(model.request(kind, kind));
    CHECK_THAT(joined_notes(*job),
               Says("links to files outside the model are left out: tokenizer/merges.txt, vocab.txt\n"));
    execute(*job, unsynced());
    CHECK(fs::exists(model / kind / "config.json"));
    for (const char* name : {"vocab.txt", "tokenizer/merges.txt"}) CHECK_FALSE(fs::exists(model / kind / name));
  }
  CHECK_THAT(joined_notes(*plan_shard(shard_request(model / "model", model / "shards", 2))),
             Says("links to files outside the model are left out: tokenizer/merges.txt, vocab.txt\n"));
}

TEST_CASE("Links inside the model and into the blobs of the hub's cache are followed") {
  const LinkedModel model;
  const fs::path cache = model / "models--org--name", snapshot = cache / "snapshots/0a1b";
  fs::create_directories(snapshot / "tokenizer");
  fs::rename(model / "model", cache / "blobs");
  write_file(cache / "blobs/vocab.txt", "tokens");
  for (const char* name : {"config.json", "model.safetensors"})
    fs::create_symlink(fs::path("../../blobs") / name, snapshot / name);
  fs::create_symlink("../../../blobs/vocab.txt", snapshot / "tokenizer/tokenizer.json");
  write_file(snapshot / "README.md", "own");
  fs::create_symlink("README.md", snapshot / "LICENSE");
  // A directory that huggingface_hub before 0.23 filled with links into its cache.
  fs::create_directories(model / "local");
  for (const char* name : {"config.json", "model.safetensors", "vocab.txt"})
    fs::create_symlink(cache / "blobs" / name, model / "local" / name);
  fs::create_directory_symlink(snapshot, model / "linked");
  for (const fs::path& source : {snapshot, model / "linked", model / "local"}) {
    INFO(source.string());
    CHECK((converted(source, model / "out") == model.tensors));
    const bool local = source == model / "local";
    for (const char* name : {"tokenizer/tokenizer.json", "LICENSE"}) CHECK(fs::exists(model / "out" / name) != local);
    if (local) CHECK(read_file(model / "out/vocab.txt") == "tokens");
  }
}

TEST_CASE("A config.json that is a link to outside of the model is refused, unless the user names it") {
  const LinkedModel model;
  const fs::path config = model / "model/config.json", elsewhere = model / "elsewhere/config.json";
  fs::create_directories(model / "elsewhere");
  fs::rename(config, elsewhere);
  fs::create_symlink("../elsewhere/config.json", config);
  Request request = model.request();
  for (const std::optional<DType> dtype : {std::optional<DType>(), {DType::kF32}}) {
    request.dtype = dtype;
    check_refused([&] { plan_convert(request); },
                  {.path = config,
                   .says = "is a link out of the model, to " + fs::canonical(elsewhere).string(),
                   .hint = "`config`"});
  }
  for (const fs::path& given : {elsewhere.parent_path(), elsewhere}) {
    request.source.config = given;
    CHECK_NOTHROW(plan_convert(request));
  }
}

TEST_CASE("A rank file that is a link to outside of the checkpoint is refused by name, in every layout of ranks") {
  const LinkedModel model;
  for (const Layout* const kind : layouts()) {
    const char* const name = kind->traits().name;
    if (!kind->traits().has_ranks() || !kind->traits().is_written()) continue;
    INFO(name);
    const Request request = model.request(name, fs::path(name) / "ckpt");
    convert(request);
    const fs::path output = *request.output_directory;
    const Checkpoint checkpoint = read_checkpoint(output, {.use = ConfigUse::kLenient});
    const fs::path file = checkpoint.map.files.back().path, moved = "moved" + file.extension().string();
    const fs::path outside = model / name / moved, inside = output / moved;
    fs::rename(file, outside);
    fs::create_symlink(outside, file);
    check_refused([&] { plan_convert(convert_request(output, model / "out")); },
                  {.path = file, .says = "is a link out of the checkpoint, to " + fs::canonical(outside).string()});
    fs::remove(file);
    fs::rename(outside, inside);
    fs::create_symlink(fs::absolute(inside), file);
    CHECK_NOTHROW(read_checkpoint(output, {.use = ConfigUse::kLenient}));
  }
}

TEST_CASE("Linked folders, pipes, sockets and links to nowhere are named in notes, whatever their names") {
  const LinkedModel model;
  const fs::path directory = model / "model";
  write_file(model / "tok/merges.txt", "a b");
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
  CHECK_THAT(joined_notes(*plan_convert(model.request())),
             Says("a folder that is a link is left out: tok\n") &&
                 Says("a broken link is left out: old.safetensors\n") &&
                 Says("entries that are not regular files are left out: pipe.json, socket\n"));
}

}  // namespace
}  // namespace reshard::test
