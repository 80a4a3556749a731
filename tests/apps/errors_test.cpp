// One test a mistake that a user can make at the command line; the library's own tests have the others.

#include "support/errors.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "support/catch.h"
#include "support/files.h"
#include "support/program.h"
#include "support/temp_dir.h"

using namespace reshard::test;
namespace fs = std::filesystem;

namespace {

const std::string kModel = testdata("golden/optimum/llama-tp8-gqa/original").string();

/// A copy of the model whose files may be spoiled.
struct ModelCopy {
  TempDir dir;
  fs::path model = dir / "model";

  ModelCopy() { fs::copy(kModel, model, fs::copy_options::recursive); }
  std::string out() const { return (dir / "out").string(); }
  ProgramResult shard(std::vector<std::string> more = {"--tp", "2"}) const {
    more.insert(more.begin(), {"shard", model.string(), out()});
    return run_reshard(more);
  }
  /// Fails as said, with nothing left behind.
  void check_fails(int exit_code, const Texts& says, std::vector<std::string> more = {"--tp", "2"}) const {
    check_failed(shard(std::move(more)), exit_code, says);
    CHECK_FALSE(fs::exists(out()));
    for (const auto& entry : fs::directory_iterator(dir.path())) CHECK(entry.path() == model);
  }
  void patch_config(const std::string& key, const nlohmann::json& value) const {
    auto config = nlohmann::json::parse(read_file(model / "config.json"));
    config[key] = value;
    write_file(model / "config.json", config.dump());
  }
};

}  // namespace

TEST_CASE("an unknown option is an error with the nearest match") {
  check_failed(run_reshard({"shard", kModel, "o", "--tpp", "2"}), 2, {"--tpp", "did you mean --tp?"});
  check_failed(run_reshard({"consolidate", "x", "--max-shard-sise", "5GB"}), 2, {"did you mean --max-shard-size?"});
  check_failed(run_reshard({"inspect", "x", "--jsn=1"}), 2, {"did you mean --json?"});
  check_failed(run_reshard({"--versoin"}), 2, {"did you mean --version?"});
}

TEST_CASE("convert names its own option where it is given one of a source, or the library speaks of one") {
  check_failed(run_reshard({"convert", kModel, "o", "--weights", "master"}), 2,
               {"--weights", "did you mean --from-weights?"});
  check_failed(run_reshard({"convert", kModel, "o", "--weights=x"}), 2, {"did you mean --from-weights?"});
  check_failed(run_reshard({"inspect", kModel, "--from-weights", "x"}), 2, {"did you mean --weights?"});
  check_failed(run_reshard({"consolidate", "x", "--with-optimizer"}), 2,
               {"--with-optimizer", "reshard convert has it; see reshard convert --help"});
  const std::string run = testdata("golden/zero1/nxd-llama-dp2-tp2/checkpoint/step_3").string();
  const std::string config = testdata("golden/zero1/nxd-llama-dp2-tp2/original").string();
  const TempDir temp;
  const ProgramResult dry = run_reshard(
      {"convert", run, (temp / "o").string(), "--config", config, "--to", "dcp", "--with-optimizer", "--dry-run"});
  CHECK_THAT(dry.err, Says("master weights are left out"));
  CHECK_THAT(dry.err, Says(": --from-weights master"));
}

TEST_CASE("an unknown subcommand is an error with the nearest match") {
  check_failed(run_reshard({"shrad"}), 2, {"there is no subcommand shrad", "did you mean shard?"});
  check_failed(run_reshard({}), 2, {"a subcommand is needed"});
}

TEST_CASE("missing, doubled and superfluous arguments are usage errors") {
  check_failed(run_reshard({"shard", kModel}), 2, {"OUT_DIR"});
  check_failed(run_reshard({"shard", kModel, "o"}), 2, {"--tp"});
  check_failed(run_reshard({"shard", kModel, "o", "extra", "--tp", "2"}), 2, {"extra"});
  check_failed(run_reshard({"shard", kModel, "o", "--tp", "2", "--tp", "4"}), 2, {"--tp"});
}

TEST_CASE("numbers and sizes are taken strictly") {
  for (const char* tp : {"0", "-1", "two", "2x", "1e1", "99999", "", "0x2", "2.0"})
    check_failed(run_reshard({"shard", kModel, "o", "--tp=" + std::string(tp)}), 2, {"--tp"});
  for (const char* size : {"5 potatoes", "5Gb/s", "-5GB", "0", "5G", "1..5GB", "99999999999TB"})
    check_failed(run_reshard({"consolidate", "x", "--max-shard-size=" + std::string(size)}), 2, {"--max-shard-size"});
  check_failed(run_reshard({"shard", kModel, "o", "--tp", "2", "--max-memory", "1KiB"}), 2,
               {"--max-memory", "at least"});
  check_failed(run_reshard({"shard", kModel, "o", "--tp", "2", "--threads", "0"}), 2, {"--threads"});
}

TEST_CASE("names that no version knows are usage errors, which list those that there are") {
  check_failed(run_reshard({"shard", kModel, "o", "--tp", "2", "--layout", "optimun"}), 2,
               {"optimun", "ranks, optimum, nxd, nxdi, presharded", "did you mean optimum?"});
  check_failed(run_reshard({"convert", kModel, "o", "--to", "nxdx", "--tp", "2"}), 2,
               {"--to: \"nxdx\" is not one of hf, ranks, optimum, nxd, nxdi, presharded"});
  check_failed(run_reshard({"consolidate", kModel, "o", "--kv-replication", "tilde"}), 2,
               {"tilde", "tiled", "adjacent"});
  check_failed(run_reshard({"shard", kModel, "o", "--tp", "2", "--format", "gguf"}), 2, {"gguf"});
  check_failed(run_reshard({"shard", kModel, "o", "--tp", "2", "--layout", "optimum", "--format", "safetensors"}), 2,
               {"layout optimum does not support --format safetensors", "pytorch, xser"});
  check_failed(run_reshard({"consolidate", "x", "-f", "xser"}), 2, {"xser", "safetensors, pytorch"});
}

TEST_CASE("options of convert that would have no effect are usage errors, since another was forgotten") {
  for (const std::vector<std::string>& option :
       std::initializer_list<std::vector<std::string>>{{"--tp", "2"},
                                                       {"--pp", "2"},
                                                       {"--vpp", "2"},
                                                       {"--pipeline-cuts", "model.layers.1"},
                                                       {"--fuse-qkv"},
                                                       {"--pad-attn-heads"}}) {
    std::vector<std::string> arguments{"convert", kModel, "o"};
    arguments.insert(arguments.end(), option.begin(), option.end());
    check_failed(run_reshard(arguments), 2, {option[0].c_str(), "layout hf"});
  }
  check_failed(run_reshard({"convert", kModel, "o", "--tp", "2"}), 2, {"--to ranks, optimum"});
  check_failed(run_reshard({"convert", kModel, "o", "--pad"}), 2, {"layouts with --pad: nxdi, presharded"});
  check_failed(run_reshard({"convert", kModel, "o", "--pad-attn-heads"}), 2, {"--from-pad-attn-heads"});
  check_failed(run_reshard({"convert", kModel, "o", "--from-kv-size-multiplier", "x"}), 2,
               {"--from-kv-size-multiplier: \"x\""});
  check_failed(run_reshard({"convert", kModel, "o", "--cast-all"}), 2, {"--cast-all needs --dtype"});
  for (const char* overflow : {"saturate", "error"}) {
    check_failed(run_reshard({"convert", kModel, "o", "--overflow", overflow}), 2, {"--overflow needs --dtype"});
    check_failed(run_reshard({"convert", kModel, "o", "--to", "ranks", "--tp", "2", "--overflow", overflow}), 2,
                 {"--overflow needs --dtype"});
  }
  for (const char* layout : {"ranks", "optimum", "presharded", "nxdi", "nxd"})
    check_failed(run_reshard({"convert", kModel, "o", "--to", layout, "--tp", "2", "--max-shard-size", "5GB"}), 2,
                 {"layout", layout, "has no option --max-shard-size", "hf"});
}

TEST_CASE("layout nxdi casts to the dtype of config.json, so --overflow has a meaning there") {
  const TempDir dir;
  const ProgramResult result = run_reshard(
      {"convert", kModel, (dir / "o").string(), "--to", "nxdi", "--tp", "2", "--overflow", "error", "--dry-run"});
  INFO(result.err);
  CHECK(result.exit_code == 0);
}

TEST_CASE("options of the other commands that would have no effect are usage errors") {
  check_failed(run_reshard({"convert", kModel, "o", "--dtype", "float16", "--overflow", ""}), 2, {"--overflow"});
  check_failed(run_reshard({"convert", kModel, "o", "--max-shard-size", ""}), 2, {"--max-shard-size"});
  for (const char* fuse : {"mean", "exact"})
    check_failed(run_reshard({"shard", kModel, "o", "--tp", "2", "--lora-fuse", fuse}), 2,
                 {"--lora-fuse needs --adapter"});
  check_failed(run_reshard({"inspect", kModel, "--print-family", "llama"}), 2, {"--print-family", kModel.c_str()});
  const std::string adapters = testdata("golden/lora/llama-tp2-two-adapters/sharded").string();
  check_failed(run_reshard({"consolidate", adapters, "o", "--max-shard-size", "5GB"}), 2,
               {"--max-shard-size", "adapters"});
}

TEST_CASE("an output directory with a weight file's name is a usage error, unless it is there already") {
  const TempDir dir;
  const std::string shards = testdata("golden/optimum/llama-tp2-pp2/sharded").string();
  for (const char* name : {"foo.safetensors", "foo.bin", "foo.pt", "a.b/foo.gguf"}) {
    const std::string out = (dir / name).string();
    const char* says = "is a directory to write to, but this is the name of a file";
    check_failed(run_reshard({"convert", kModel, out}), 2, {"DST", name, says});
    check_failed(run_reshard({"consolidate", shards, out}), 2, {"OUT_DIR", name, says});
    check_failed(run_reshard({"shard", kModel, out, "--tp", "2"}), 2, {"OUT_DIR", name, says});
    CHECK_FALSE(fs::exists(out));
  }
  for (const char* name : {"foo.safetensors/", "there.safetensors", "model.v1.5"}) {
    fs::create_directories(dir / "there.safetensors");
    const ProgramResult result = run_reshard({"convert", kModel, (dir.path() / name).string()});
    INFO(result.err);
    CHECK(result.exit_code == 0);
    CHECK(fs::exists(dir / name / "model.safetensors"));
  }
}

TEST_CASE("files of other well-known formats are named as what they are") {
  const TempDir dir;
  const std::pair<const char*, std::string> files[] = {
      {"GGUF", std::string("GGUF\3\0\0\0\x23\1\0\0\0\0\0\0 and so on", 26)},
      {"GGML", "tjgg\3 and what came before GGUF"},
      {"HDF5", std::string("\x89HDF\r\n\x1a\n\0\0\0\0 and so on", 22)},
      {"NumPy", "\x93NUMPY\1 and an array"}};
  for (const auto& [format, bytes] : files)
    for (const char* name : {"model.gguf", "model.safetensors", "pytorch_model.bin", "w"}) {
      INFO(format << " as " << name);
      write_file(dir / name, bytes);
      check_failed(run_reshard({"inspect", (dir / name).string()}), 4,
                   {name, "is a", format, "which is not supported"});
    }
}

TEST_CASE("a truncated file is bad input with its sizes") {
  ModelCopy copy;
  const auto size = fs::file_size(copy.model / "model.safetensors");
  fs::resize_file(copy.model / "model.safetensors", size - 1);
  copy.check_fails(3, {"model.safetensors", "cut off", std::to_string(size - 1).c_str(), std::to_string(size).c_str()});
}

TEST_CASE("a padded file is bad input") {
  ModelCopy copy;
  fs::resize_file(copy.model / "model.safetensors", fs::file_size(copy.model / "model.safetensors") + 8);
  copy.check_fails(3, {"model.safetensors", "bytes after its last tensor"});
}

TEST_CASE("a git-lfs pointer is named as such") {
  ModelCopy copy;
  write_file(copy.model / "model.safetensors", "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n");
  copy.check_fails(3, {"git-lfs pointer", "git lfs pull"});
}

TEST_CASE("a model without weights or without config.json is bad input") {
  ModelCopy copy;
  fs::rename(copy.model / "config.json", copy.model / "config.txt");
  copy.check_fails(3, {"config.json"});
  fs::rename(copy.model / "config.txt", copy.model / "config.json");
  fs::remove(copy.model / "model.safetensors");
  copy.check_fails(3, {"model.safetensors"});
}

TEST_CASE("an unknown model_type is refused with the families whose tensors fit, or a way to describe it") {
  ModelCopy copy;
  copy.patch_config("model_type", "unheard_of");
  copy.check_fails(4, {"unheard_of", "its tensors fit several families", "--family"});
  copy.patch_config("vocab_size", "7");
  copy.check_fails(4, {"unheard_of", "--spec", "--print-family"});
}

TEST_CASE("a config.json without model_type is enough for what needs no family, or with --family") {
  const ModelCopy copy;
  auto config = nlohmann::json::parse(read_file(copy.model / "config.json"));
  config.erase("model_type");
  write_file(copy.model / "config.json", config.dump());
  copy.check_fails(3, {"config.json: has no \"model_type\"", "its tensors fit several families", ": llama, "});
  const std::string model = copy.model.string();
  CHECK(run_reshard({"convert", model, (copy.dir / "converted").string()}).exit_code == 0);
  CHECK(run_reshard({"verify", model, (copy.dir / "converted").string()}).exit_code == 0);
  REQUIRE(copy.shard({"--tp", "2", "--family", "llama"}).exit_code == 0);
  const ProgramResult back = run_reshard({"consolidate", copy.out(), (copy.dir / "back").string()});
  CHECK(back.exit_code == 0);
  CHECK_THAT(back.err, Says("config.json has no \"model_type\", so the metadata alone says what the tensors are"));
  CHECK((read_tensors(copy.dir / "back/model.safetensors") == read_tensors(copy.model / "model.safetensors")));
}

TEST_CASE("shards that were made with --family name it where they are read without") {
  ModelCopy copy;
  copy.patch_config("model_type", "qwen3");
  REQUIRE(copy.shard({"--tp", "2", "--family", "llama"}).exit_code == 0);
  check_failed(run_reshard({"consolidate", copy.out(), (copy.dir / "back").string()}), 3,
               {"but config.json, with defaults of its model_type, asks for",
                "if the shards were made with --family or --spec, give the same here"});
}

TEST_CASE("what was given already is not proposed") {
  ModelCopy copy;
  REQUIRE(copy.shard({"--tp", "2", "--layout", "presharded"}).exit_code == 0);
  const auto read = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"consolidate", copy.out(), (copy.dir / "back").string()});
    return run_reshard(arguments).err;
  };
  copy.patch_config("num_hidden_layers", 1);
  fs::copy(copy.model / "config.json", copy.out(), fs::copy_options::overwrite_existing);
  const std::string same = "if the shards were made with --family or --spec, give the same here";
  CHECK_THAT(read({}), Says(same));
  CHECK_THAT(read({"--family", "mistral"}), Says("config.json belongs to another model") && !Says(same));

  copy.patch_config("model_type", "unheard");
  CHECK_THAT(run_reshard({"convert", copy.model.string(), copy.out() + "2", "--to", "dcp", "--tp", "2"}).err,
             Says("(--config), with --family or --spec, if its model_type is not known"));
}

TEST_CASE("sizes that do not divide are told with the degrees that would") {
  ModelCopy copy;
  copy.check_fails(2, {"5 ranks", "TP degrees that work for this model: 1, 2, 4, 8"}, {"--tp", "5"});
  copy.check_fails(2, {"multiplier of 3"}, {"--tp", "8", "--kv-size-multiplier", "3"});
  copy.check_fails(2, {"4 layers", "--pp 5"}, {"--tp", "2", "--pp", "5"});
  copy.check_fails(2, {"--pipeline-cuts", "model.layers.9"},
                   {"--tp", "2", "--pp", "2", "--pipeline-cuts", "model.layers.9"});
}

TEST_CASE("layers and sizes that config.json has otherwise than the files are named") {
  ModelCopy copy;
  copy.patch_config("num_hidden_layers", 3);
  copy.check_fails(3, {"num_hidden_layers is 3 in config.json, but the files have layers 0 to 3"});
  copy.patch_config("num_hidden_layers", 5);
  copy.check_fails(3, {"num_hidden_layers is 5 in config.json, but the files have layers 0 to 3"});
  copy.patch_config("num_hidden_layers", 4);
  copy.patch_config("vocab_size", 65);
  copy.check_fails(3, {"model.embed_tokens.weight", "[64, 32]", "[65, 32]"});
}

TEST_CASE("an output directory that cannot be made is an I/O error") {
  ModelCopy copy;
  write_file(copy.dir / "file", "x");
  check_failed(run_reshard({"shard", copy.model.string(), (copy.dir / "file/out").string(), "--tp", "2"}), 3,
               {"not a directory"});
  fs::remove(copy.dir / "file");
  // Root may write anywhere, so the program is run as nobody, from a place that nobody can read.
  const std::string setup = ::geteuid() == 0 ? "setpriv --reuid 65534 --clear-groups" : "";
  const fs::path program = copy.dir / "reshard";
  fs::copy(RESHARD_PROGRAM, program);
  fs::permissions(copy.dir.path(), fs::perms(0555));
  const ProgramResult result =
      run_reshard({"shard", copy.model.string(), copy.out(), "--tp", "2"}, setup, program.string());
  fs::permissions(copy.dir.path(), fs::perms(0755));
  check_failed(result, 6, {"cannot write here", copy.dir.path().c_str()});
  CHECK_FALSE(fs::exists(copy.out()));
}

TEST_CASE("a file size limit half-way is an I/O error that names the limit, with nothing left behind") {
  ModelCopy copy;
  const ProgramResult result = run_reshard({"shard", copy.model.string(), copy.out(), "--tp", "2"}, "ulimit -f 8;");
  check_failed(result, 6, {"model.safetensors", "ulimit -f"});
  CHECK_THAT(result.err, !Says("free some space"));
  CHECK_FALSE(fs::exists(copy.out()));
  for (const auto& entry : fs::directory_iterator(copy.dir.path())) CHECK(entry.path() == copy.model);
}

TEST_CASE("output that does not fit the file system is refused before anything is written") {
  ModelCopy copy;
  auto config = nlohmann::json::parse(read_file(copy.model / "config.json"));
  const std::uint64_t vocab = std::uint64_t{1} << 37;  // a matrix of 8 TiB, as a hole
  config["vocab_size"] = vocab;
  config["num_hidden_layers"] = 1;
  config["tie_word_embeddings"] = true;
  write_file(copy.model / "config.json", config.dump());
  TensorMap tensors = read_tensors(copy.model / "model.safetensors");
  nlohmann::json header;
  std::uint64_t end = 0;
  for (auto& [name, tensor] : tensors) {
    if (name == "lm_head.weight" ||
        (name.find(".layers.") != std::string::npos && name.find(".layers.0.") == std::string::npos))
      continue;
    if (name == "model.embed_tokens.weight") tensor.shape[0] = vocab;
    std::uint64_t bytes = 2;
    for (const std::uint64_t size : tensor.shape) bytes *= size;
    header[name] = {{"dtype", "BF16"}, {"shape", tensor.shape}, {"data_offsets", {end, end + bytes}}};
    end += bytes;
  }
  const std::string start = safetensors_bytes(header.dump(), "");
  write_file(copy.model / "model.safetensors", start);
  REQUIRE(::truncate((copy.model / "model.safetensors").c_str(), static_cast<off_t>(start.size() + end)) == 0);
  copy.check_fails(5, {"need", "free"});
  const ProgramResult dry = copy.shard({"--tp", "2", "--dry-run"});
  CHECK(dry.exit_code == 5);
  CHECK_THAT(dry.out, Says("free on"));
}

TEST_CASE("standard output that cannot be written is an I/O error") {
  const TempDir dir;
  const std::string out = (dir / "o").string();
  // Short and long output, by lines and as one document.
  for (const std::string& arguments : std::vector<std::string>{
           "inspect " + kModel, "inspect " + kModel + " --tensors", "inspect " + kModel + " --json --stats",
           "shard " + kModel + " " + out + " --tp 2 --json --dry-run",
           "shard " + kModel + " " + out + " --tp 2 --dry-run", "verify " + kModel + " " + kModel,
           "verify " + kModel + " " + kModel + " --json", std::string("--help"), std::string("shard --help"),
           std::string("--version"), std::string("help verify"), std::string("inspect --print-family llama"),
           "inspect " + kModel + " --digest"}) {
    INFO(arguments);
    const std::string command =
        std::string(RESHARD_PROGRAM) + " " + arguments + " >/dev/full 2>" + (dir / "err").string();
    CHECK(WEXITSTATUS(std::system(command.c_str())) == 6);
    CHECK_THAT(read_file(dir / "err"), Says("standard output"));
  }
  CHECK_FALSE(fs::exists(out));
}

TEST_CASE("a report that cannot be printed is an error, which says that the outputs are complete") {
  const TempDir dir;
  const std::string fifo = (dir / "fifo").string(), err = (dir / "err").string(), out = (dir / "o").string();
  REQUIRE(::mkfifo(fifo.c_str(), 0600) == 0);
  const std::string gone =
      "exec 3<>" + fifo + " 4>" + fifo + " 3<&-; ";  // 4 is a pipe of which nobody has the other end
  struct Case {
    std::string setup, redirection;
    int exit_code;
  };
  for (const Case& one : {Case{"", " >/dev/full", 6}, Case{gone, " >&4", 141}, Case{"", " >&-", 6}})
    for (const std::string more : {"", " --json", " --quiet", " --json --quiet"}) {
      INFO(one.redirection << more);
      const bool reports = more != " --quiet";
      const std::string command = one.setup + std::string(RESHARD_PROGRAM) + " shard " + kModel + " " + out +
                                  " --tp 2" + more + one.redirection + " 2>" + err;
      CHECK(WEXITSTATUS(std::system(command.c_str())) == (reports ? one.exit_code : 0));
      CHECK(fs::exists(fs::path(out) / "tensor_parallel_shards"));
      const std::string text = read_file(err);
      const bool says = reports && one.exit_code == 6;
      CHECK((text.find("the outputs in " + out + " are complete, but cannot write to standard output") != text.npos) ==
            says);
      const int of_the_shards = more.empty() ? 1 : 0;  // the note on which programs load them
      CHECK(std::count(text.begin(), text.end(), '\n') == of_the_shards + (says ? 1 : 0));
      fs::remove_all(out);
    }
}

TEST_CASE("messages to a standard error that is closed or full go nowhere, least of all into outputs") {
  const TempDir dir;
  const std::string out = (dir / "o").string();
  REQUIRE(run_reshard({"shard", kModel, out, "--tp", "2"}).exit_code == 0);
  const auto right = snapshot(out);
  for (const char* redirection : {" 2>&-", " 2>/dev/full", " <&- 2>&-", " --quiet <&- >&- 2>&-"}) {
    INFO(redirection);
    fs::remove_all(out);
    const std::string command =
        std::string(RESHARD_PROGRAM) + " shard " + kModel + " " + out + " --tp 2 >/dev/null" + redirection;
    CHECK(WEXITSTATUS(std::system(command.c_str())) == 0);
    CHECK(snapshot(out) == right);
  }
}

TEST_CASE("a reader that has gone ends the program without a word") {
  const TempDir dir;
  const std::string fifo = (dir / "fifo").string(), err = (dir / "err").string();
  REQUIRE(::mkfifo(fifo.c_str(), 0600) == 0);
  for (const std::string& arguments : {"inspect " + kModel, "inspect " + kModel + " --json", std::string("--help")}) {
    INFO(arguments);
    // 4 is a pipe of which nobody has the other end.
    const std::string command =
        "exec 3<>" + fifo + " 4>" + fifo + " 3<&-; " + std::string(RESHARD_PROGRAM) + " " + arguments + " >&4 2>" + err;
    CHECK(WEXITSTATUS(std::system(command.c_str())) == 141);
    CHECK(read_file(err).empty());
  }
}

TEST_CASE("a report to a standard output that is closed is an error") {
  const TempDir dir;
  const std::string err = (dir / "err").string();
  for (const std::string& arguments :
       {"inspect " + kModel, "inspect " + kModel + " --json", std::string("--version")}) {
    INFO(arguments);
    const std::string command = std::string(RESHARD_PROGRAM) + " " + arguments + " >&- 2>" + err;
    CHECK(WEXITSTATUS(std::system(command.c_str())) == 6);
    CHECK_THAT(read_file(err), Says("cannot write to standard output"));
  }
}

TEST_CASE("a dry run prints its plan, and then why it cannot run") {
  const TempDir dir;
  const std::string out = (dir / "o").string();
  REQUIRE(run_reshard({"shard", kModel, out, "--tp", "2", "--quiet"}).exit_code == 0);
  const auto before = snapshot(dir.path());
  const ProgramResult taken = run_reshard({"shard", kModel, out, "--tp", "4", "--dry-run"});
  CHECK(taken.exit_code == 3);
  CHECK_THAT(taken.out, Says("writes    "));
  CHECK_THAT(taken.err, Says("--force"));
  const ProgramResult document = run_reshard({"shard", kModel, out, "--tp", "4", "--dry-run", "--json"});
  CHECK(document.exit_code == 3);
  CHECK(nlohmann::json::parse(document.out).at("command") == "shard");
  CHECK(run_reshard({"shard", kModel, (dir / "new").string(), "--tp", "4", "--dry-run"}).exit_code == 0);
  CHECK((snapshot(dir.path()) == before));
}

TEST_CASE("the training state has no place where only adapters are written") {
  check_failed(run_reshard({"shard", kModel, "/nowhere", "--tp", "2", "--adapter", "/nowhere", "--with-optimizer"}), 2,
               {"--with-optimizer has no effect with --adapter"});
}

TEST_CASE("an empty OUT_DIR is a mistake of a script, not the default") {
  const std::string shards = testdata("golden/optimum/llama-tp2-pp2/sharded").string();
  check_failed(run_reshard({"consolidate", shards, ""}), 2, {"OUT_DIR is empty"});
  CHECK_FALSE(fs::exists(fs::path(shards) / "model.safetensors"));
}

TEST_CASE("a zip file under the name of safetensors is told as one") {
  ModelCopy copy;
  write_file(copy.model / "model.safetensors", "PK\x03\x04 and what torch.save writes after it");
  copy.check_fails(3, {"model.safetensors", "is a zip file", "pytorch_model.bin"});
}
