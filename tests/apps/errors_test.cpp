// One test a mistake that a user can make at the command line; the library's own tests have the others.

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "support/files.h"
#include "support/models.h"
#include "support/program.h"
#include "support/spoilers.h"
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
  Arguments shard(const Arguments& more = {"--tp", "2"}) const {
    return joined({"shard", model.string(), out()}, more);
  }
  /// Fails as said, with nothing left behind.
  void check_fails(int exit_code, const Texts& says, const Arguments& more = {"--tp", "2"}) const {
    reshard::test::check_fails(shard(more), exit_code, says);
    CHECK_FALSE(fs::exists(out()));
    for (const auto& entry : fs::directory_iterator(dir.path())) CHECK(entry.path() == model);
  }
  void patch_config(const std::string& key, const nlohmann::json& value) const {
    merge_json(model / "config.json", {{key, value}});
  }
};

/// Runs the program in a shell, with standard error in the file `err`. \returns the exit code.
int run_in_shell(const std::string& words_and_redirections, const std::string& err, const std::string& setup = "") {
  return WEXITSTATUS(std::system((setup + RESHARD_PROGRAM + " " + words_and_redirections + " 2>" + err).c_str()));
}

/// What a standard output can be that takes nothing, and the exit code that this leads to.
struct DeadOutput {
  std::string setup, redirection;
  int exit_code;
};

std::vector<DeadOutput> dead_outputs(const TempDir& dir) {
  const std::string fifo = (dir / "fifo").string();
  REQUIRE(::mkfifo(fifo.c_str(), 0600) == 0);
  // 4 is a pipe of which nobody has the other end.
  return {{"", " >/dev/full", 6}, {"", " >&-", 6}, {"exec 3<>" + fifo + " 4>" + fifo + " 3<&-; ", " >&4", 141}};
}

}  // namespace

TEST_CASE("A dash is no path, and neither are pipes, which is told with what to do") {
  const std::string says = ": standard input and output are not supported";
  for (const auto& [arguments, option] : std::vector<std::pair<Arguments, std::string>>{
           {{"shard", "-", "o", "--tp", "2"}, "MODEL_DIR"},
           {{"shard", kModel, "-", "--tp", "2"}, "OUT_DIR"},
           {{"consolidate", "-"}, "CHECKPOINT_DIR"},
           {{"consolidate", kModel, "-"}, "OUT_DIR"},
           {{"convert", "-", "o"}, "SRC"},
           {{"convert", kModel, "-"}, "DST"},
           {{"inspect", "-"}, "PATH"},
           {{"verify", kModel, "-"}, "B"},
           {{"verify", kModel, "--manifest", "-"}, "--manifest"},
           {{"shard", kModel, "o", "--tp", "2", "--spec", "-"}, "--spec"},
       })
    check_fails(arguments, 2, {option + says, "save piped data to a file first", "./-"});
  const TempDir dir;
  const std::string pipe = (dir / "pipe").string();
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  for (const Arguments& arguments : std::vector<Arguments>{{"shard", pipe, (dir / "o").string(), "--tp", "2"},
                                                           {"consolidate", pipe, (dir / "o").string()},
                                                           {"convert", pipe, (dir / "o").string()},
                                                           {"inspect", pipe},
                                                           {"verify", kModel, pipe}})
    check_fails(arguments, 3, {pipe + ": is a pipe or a device", "save the data to a file, and give its path"});
}

TEST_CASE("A missing argument that has few choices is an error that names them") {
  check_fails({"completion"}, 2, {"SHELL is required", "give one of bash, zsh, fish"});
}

TEST_CASE("A value that is none of an option's choices is an error that names all of them") {
  const auto [command, option, choices] =
      GENERATE(table<std::string, std::string, std::string>({{"convert", "--overflow", "saturate, error"},
                                                             {"convert", "--lora-fuse", "mean, exact, same"},
                                                             {"convert", "--extra-tensors", "keep, drop"},
                                                             {"verify", "--replicas", "drift, exact, first"},
                                                             {"verify", "--progress", "auto, lines, json, none"}}));
  check_fails({command, "a", "b", option, "x"}, 2, {option + ": \"x\" is not one of " + choices});
  check_fails({"verify", "a", "b", "--replicas", "exat"}, 2, {"did you mean exact?"});
}

TEST_CASE("an unknown option or subcommand is an error with the nearest match") {
  check_fails({"shard", kModel, "o", "--tpp", "2"}, 2, {"--tpp", "did you mean --tp?"});
  check_fails({"consolidate", "x", "--max-shard-sise", "5GB"}, 2, {"did you mean --max-shard-size?"});
  check_fails({"inspect", "x", "--jsn=1"}, 2, {"did you mean --json?"});
  check_fails({"--versoin"}, 2, {"did you mean --version?"});
  check_fails({"-v"}, 2, {"try: reshard --version"});
  check_fails({"inspect", kModel, "--version"}, 2, {"try: reshard --version"});
  check_fails({"shard", kModel, "o", "-q"}, 2, {"try: --quiet"});
  check_fails({"shrad"}, 2, {"there is no subcommand shrad", "did you mean shard?"});
  check_fails({"neuron", "consolidate", "a", "b"}, 2,
              {"there is no subcommand neuron", "did you mean reshard consolidate?"});
}

TEST_CASE("convert names its own option where it is given one of a source, or the library speaks of one") {
  check_fails({"convert", kModel, "o", "--weights", "master"}, 2, {"--weights", "did you mean --from-weights?"});
  check_fails({"convert", kModel, "o", "--weights=x"}, 2, {"did you mean --from-weights?"});
  check_fails({"inspect", kModel, "--from-weights", "x"}, 2, {"did you mean --weights?"});
  check_fails({"consolidate", "x", "--with-optimizer"}, 2,
              {"--with-optimizer", "reshard convert has it; see reshard convert --help"});
  const std::string run = testdata("golden/zero1/nxd-llama-dp2-tp2/checkpoint/step_3").string();
  const std::string config = testdata("golden/zero1/nxd-llama-dp2-tp2/original").string();
  const TempDir temp;
  const ProgramResult dry = run_reshard(
      {"convert", run, (temp / "o").string(), "--config", config, "--to", "dcp", "--with-optimizer", "--dry-run"});
  CHECK_THAT(dry.err, Says("master weights, which torch's optimizers do not have"));
  CHECK_THAT(dry.err, Says("; --from-weights master writes them as"));
}

TEST_CASE("missing, doubled and superfluous arguments are usage errors") {
  check_fails({"shard", kModel}, 2, {"OUT_DIR"});
  check_fails({"shard", kModel, "o"}, 2, {"--tp"});
  check_fails({"shard", kModel, "o", "extra", "more", "--tp", "2"}, 2,
              {"there are more arguments than the subcommand takes: extra, more"});
  check_fails({"shard", kModel, "o", "--tp", "2", "--tp", "4"}, 2, {"--tp may be given only once"});
  check_fails({"shard", kModel, "o", "--tp"}, 2, {"--tp needs a value"});
  check_fails({"shard", kModel, "o", "--tp", "2", "--pp", "5"}, 2, {"4 layers", "--pp 5"});
}

TEST_CASE("numbers and sizes are taken strictly") {
  for (const char* tp : {"0", "-1", "two", "2x", "1e1", "99999", "", "0x2", "2.0"})
    check_fails({"shard", kModel, "o", "--tp=" + std::string(tp)}, 2, {"--tp"});
  for (const char* size : {"5 potatoes", "5Gb/s", "-5GB", "0", "5G", "1..5GB", "99999999999TB"})
    check_fails({"consolidate", "x", "--max-shard-size=" + std::string(size)}, 2, {"--max-shard-size"});
  check_fails({"shard", kModel, "o", "--tp", "2", "--max-memory", "1KiB"}, 2,
              {"--max-memory", "at least 4.00 MiB; a manifest needs 17 MiB or more"});
  const TempDir dir;
  const std::string manifest = (dir / "written/reshard.manifest.json").string();
  run_well({"shard", kModel, (dir / "written").string(), "--tp", "2", "--manifest", "--max-memory", "17MiB"});
  for (const Arguments& command : {Arguments{"shard", kModel, (dir / "o").string(), "--tp", "2", "--manifest"},
                                   Arguments{"verify", kModel, "--manifest", manifest}}) {
    check_fails(joined(command, {"--max-memory", "16MiB"}), 2, {"--max-memory 16.0 MiB", "give at least 17.0 MiB"});
    CHECK_FALSE(fs::exists(dir / "o"));
  }
  check_fails({"shard", kModel, "o", "--tp", "2", "--threads", "0"}, 2, {"--threads"});
  check_fails({"inspect", kModel, "--filter", "("}, 2, {"--filter"});
}

TEST_CASE("names that no version knows are usage errors, which list those that there are") {
  check_fails({"shard", kModel, "o", "--tp", "2", "--layout", "optimun"}, 2,
              {"optimun", "ranks, optimum, nxd, nxdi, presharded", "did you mean optimum?"});
  check_fails({"convert", kModel, "o", "--to", "nxdx", "--tp", "2"}, 2,
              {"--to: \"nxdx\" is not one of hf, ranks, optimum, nxd, nxdi, presharded"});
  check_fails({"consolidate", kModel, "o", "--kv-replication", "tilde"}, 2, {"tilde", "tiled", "adjacent"});
  check_fails({"shard", kModel, "o", "--tp", "2", "--format", "gguf"}, 2, {"gguf"});
  check_fails({"shard", kModel, "o", "--tp", "2", "--layout", "optimum", "--format", "safetensors"}, 2,
              {"layout optimum does not support --format safetensors", "pytorch, xser"});
  check_fails({"consolidate", "x", "-f", "xser"}, 2, {"xser", "safetensors, pytorch"});
}

TEST_CASE("options of convert that would have no effect are usage errors, since another was forgotten") {
  for (const std::string option :
       {"--tp=2", "--pp=2", "--vpp=2", "--pipeline-cuts=model.layers.1", "--fuse-qkv", "--pad-attn-heads"})
    check_fails({"convert", kModel, "o", option}, 2, {option.substr(0, option.find('=')), "layout hf"});
  check_fails({"convert", kModel, "o", "--tp", "2"}, 2, {"--to ranks, optimum"});
  check_fails({"convert", kModel, "o", "--pad"}, 2, {"layouts with --pad: nxdi, presharded"});
  check_fails({"convert", kModel, "o", "--pad-attn-heads"}, 2, {"--from-pad-attn-heads"});
  check_fails({"convert", kModel, "o", "--from-kv-size-multiplier", "x"}, 2, {"--from-kv-size-multiplier: \"x\""});
  check_fails({"convert", kModel, "o", "--cast-all"}, 2, {"--cast-all needs --dtype"});
  const TempDir dir;
  for (const char* overflow : {"saturate", "error"})
    check_run({"convert", kModel, (dir / "o").string(), "--overflow", overflow, "--dry-run"}, 0, {},
              {"--overflow has no effect: no tensor is cast"});
  run_well({"convert", kModel, (dir / "o").string(), "--to", "nxdi", "--tp", "2", "--overflow", "error", "--dry-run"});
  for (const char* layout : {"ranks", "optimum", "presharded", "nxdi", "nxd"})
    check_fails({"convert", kModel, "o", "--to", layout, "--tp", "2", "--max-shard-size", "5GB"}, 2,
                {"layout", layout, "has no option --max-shard-size", "hf"});
}

TEST_CASE("options of the other commands that would have no effect are usage errors") {
  check_fails({"convert", kModel, "o", "--dtype", "float16", "--overflow", ""}, 2, {"--overflow"});
  check_fails({"convert", kModel, "o", "--max-shard-size", ""}, 2, {"--max-shard-size"});
  for (const char* fuse : {"mean", "exact"})
    check_fails({"shard", kModel, "o", "--tp", "2", "--lora-fuse", fuse}, 2, {"--lora-fuse needs --adapter"});
  check_fails({"inspect", kModel, "--print-family", "llama"}, 2, {"--print-family", kModel});
  const std::string adapters = testdata("golden/lora/llama-tp2-two-adapters/sharded").string();
  check_fails({"consolidate", adapters, "o", "--max-shard-size", "5GB"}, 2, {"--max-shard-size", "adapters"});
}

TEST_CASE("an output directory with a weight file's name is a usage error, unless it is there already") {
  const TempDir dir;
  const std::string shards = testdata("golden/optimum/llama-tp2-pp2/sharded").string();
  for (const char* name : {"foo.safetensors", "foo.bin", "foo.pt", "a.b/foo.gguf"}) {
    const std::string out = (dir / name).string();
    const char* says = "is a directory to write to, but this is the name of a file";
    check_fails({"convert", kModel, out}, 2, {"DST", name, says});
    check_fails({"consolidate", shards, out}, 2, {"OUT_DIR", name, says});
    check_fails({"shard", kModel, out, "--tp", "2"}, 2, {"OUT_DIR", name, says});
    CHECK_FALSE(fs::exists(out));
  }
  for (const char* name : {"foo.safetensors/", "there.safetensors", "model.v1.5"}) {
    fs::create_directories(dir / "there.safetensors");
    run_well({"convert", kModel, (dir.path() / name).string()});
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
      check_fails({"inspect", (dir / name).string()}, 4, {name, "is a", format, "which is not supported"});
    }
}

TEST_CASE("weights that are cut off, padded, or no weights are named as such") {
  const ModelCopy copy;
  const fs::path file = copy.model / "model.safetensors";
  const std::string good = read_file(file), size = std::to_string(good.size());
  const std::pair<std::string, Texts> files[] = {
      {good.substr(0, good.size() - 1), {"model.safetensors", "cut off", std::to_string(good.size() - 1), size}},
      {good + std::string(8, '\0'), {"model.safetensors", "bytes after its last tensor"}},
      {"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n", {"git-lfs pointer", "git lfs pull"}},
      {std::string(8, '\0') + good.substr(8), {"model.safetensors", "the header is not valid JSON", "try: "}},
      {std::string("\x1F\x8B\x08\0\0\0\0\0\2\3", 10) + good,
       {"is compressed with gzip", "try: unpack it first: gzip -d"}},
      {"PK\x03\x04 and what torch.save writes", {"model.safetensors", "is a zip file", "pytorch_model.bin"}}};
  for (const auto& [bytes, says] : files) {
    write_file(file, bytes);
    copy.check_fails(3, says);
  }
}

TEST_CASE("a model without weights or without config.json is bad input") {
  ModelCopy copy;
  fs::rename(copy.model / "config.json", copy.model / "config.txt");
  copy.check_fails(3, {"config.json"});
  fs::rename(copy.model / "config.txt", copy.model / "config.json");
  const std::string config = read_file(copy.model / "config.json");
  write_file(copy.model / "config.json", config.substr(0, config.size() / 2));
  copy.check_fails(3, {"is not valid JSON", "try: correct the file, or copy it again from the model; --config"});
  write_file(copy.model / "config.json", config);
  fs::remove(copy.model / "model.safetensors");
  copy.check_fails(3, {"model.safetensors"});
}

TEST_CASE("a config.json without model_type is enough for what needs no family, or with --family") {
  const ModelCopy copy;
  copy.patch_config("model_type", nullptr);
  copy.check_fails(3, {"config.json: has no \"model_type\"", "its tensors fit several families", ": llama, "});
  const std::string model = copy.model.string();
  run_well({"convert", model, (copy.dir / "converted").string()});
  run_well({"verify", model, (copy.dir / "converted").string()});
  run_well(copy.shard({"--tp", "2", "--family", "llama"}));
  const ProgramResult back = check_run({"consolidate", copy.out(), (copy.dir / "back").string()}, 0, {},
                                       "config.json has no \"model_type\", so only the metadata describes the tensors");
  CHECK((read_tensors(copy.dir / "back/model.safetensors") == read_tensors(copy.model / "model.safetensors")));
}

TEST_CASE("shards that were made with --family name it where they are read without") {
  ModelCopy copy;
  copy.patch_config("model_type", "qwen3");
  run_well(copy.shard({"--tp", "2", "--family", "llama"}));
  check_fails({"consolidate", copy.out(), (copy.dir / "back").string()}, 3,
              {"but config.json, with defaults of its model_type, asks for",
               "if the shards were made with --family or --spec, give the same here"});
}

TEST_CASE("what was given already is not proposed") {
  ModelCopy copy;
  run_well(copy.shard({"--tp", "2", "--layout", "presharded"}));
  const auto read = [&](const Arguments& more) {
    return run_reshard(joined({"consolidate", copy.out(), (copy.dir / "back").string()}, more)).err;
  };
  copy.patch_config("num_hidden_layers", 1);
  fs::copy(copy.model / "config.json", copy.out(), fs::copy_options::overwrite_existing);
  const std::string same = "if the shards were made with --family or --spec, give the same here";
  CHECK_THAT(read({}), Says(same));
  CHECK_THAT(read({"--family", "mistral"}), Says("config.json belongs to another model") && !Says(same));

  copy.patch_config("model_type", "unheard");
  CHECK_THAT(run_reshard({"convert", copy.model.string(), copy.out() + "2", "--to", "dcp", "--tp", "2"}).err,
             Says("(--config), with --family or --spec if its model_type is unknown"));
}

TEST_CASE("an output directory that cannot be made is an I/O error") {
  ModelCopy copy;
  write_file(copy.dir / "file", "x");
  check_fails({"shard", copy.model.string(), (copy.dir / "file/out").string(), "--tp", "2"}, 3, {"not a directory"});
  fs::remove(copy.dir / "file");
  // Root may write anywhere, so the program is run as nobody, from a place that nobody can read.
  const std::string setup = ::geteuid() == 0 ? "setpriv --reuid 65534 --clear-groups" : "";
  const fs::path program = copy.dir / "reshard";
  fs::copy(RESHARD_PROGRAM, program);
  fs::permissions(copy.dir.path(), fs::perms(0555));
  const ProgramResult result = run_reshard(copy.shard(), setup, program.string());
  fs::permissions(copy.dir.path(), fs::perms(0755));
  check_failed(result, 6, {"cannot write here", copy.dir.path().c_str()});
  CHECK_FALSE(fs::exists(copy.out()));
}

TEST_CASE("a file size limit half-way is an I/O error that names the limit, with nothing left behind") {
  ModelCopy copy;
  const ProgramResult result = run_reshard(copy.shard(), "ulimit -f 8;");
  check_failed(result, 6, {"checkpoint.pt", "ulimit -f"});
  CHECK_THAT(result.err, !Says("free some space"));
  CHECK_FALSE(fs::exists(copy.out()));
  for (const auto& entry : fs::directory_iterator(copy.dir.path())) CHECK(entry.path() == copy.model);
}

TEST_CASE("output that does not fit the file system is refused before anything is written") {
  const ModelCopy copy;
  TinyModel model;
  model.vocab = std::uint64_t{1} << 37;  // a matrix of 4 TiB
  model.tied = true;
  write_sparse_model(copy.model, model);
  copy.check_fails(5, {"need", "free"});
  check_run(copy.shard({"--tp", "2", "--dry-run"}), 5, "free on");
}

TEST_CASE(
    "standard output that cannot be written is an I/O error, and a reader that has gone ends all without a word") {
  const TempDir dir;
  const std::string out = (dir / "o").string(), err = (dir / "err").string();
  const std::string shard = "shard " + kModel + " " + out + " --tp 2 --dry-run";
  for (const DeadOutput& output : dead_outputs(dir))
    // Short and long output, by lines and as one document.
    for (const std::string& words : Arguments{
             "inspect " + kModel, "inspect " + kModel + " --tensors", "inspect " + kModel + " --json --stats",
             shard + " --json", shard, "verify " + kModel + " " + kModel, "verify " + kModel + " " + kModel + " --json",
             "--help", "shard --help", "--version", "help verify", "man", "completion bash", "version --json",
             "doctor --json", "inspect --print-family llama", "inspect " + kModel + " --digest"}) {
      INFO(words << output.redirection);
      CHECK(run_in_shell(words + output.redirection, err, output.setup) == output.exit_code);
      const std::string text = read_file(err);
      const bool says = text.find("cannot write to standard output") != text.npos;
      CHECK(says == (output.exit_code == 6));
      if (!says && words != shard) CHECK(text.empty());  // which has a note
    }
  CHECK_FALSE(fs::exists(out));
}

TEST_CASE("a report that cannot be printed is an error, which says that the outputs are complete") {
  const TempDir dir;
  const std::string err = (dir / "err").string(), out = (dir / "o").string();
  for (const DeadOutput& output : dead_outputs(dir))
    for (const std::string more : {"", " --json", " --quiet", " --json --quiet"}) {
      INFO(output.redirection << more);
      const bool reports = more != " --quiet";
      CHECK(run_in_shell("shard " + kModel + " " + out + " --tp 2" + more + output.redirection, err, output.setup) ==
            (reports ? output.exit_code : 0));
      CHECK(fs::exists(fs::path(out) / "tensor_parallel_shards"));
      const std::string text = read_file(err);
      const bool says = reports && output.exit_code == 6;
      CHECK((text.find("the outputs in " + out + " are complete, but cannot write to standard output") != text.npos) ==
            says);
      const int of_the_shards = more.empty() ? 1 : 0;  // the note on which programs load them
      CHECK(std::count(text.begin(), text.end(), '\n') == of_the_shards + (says ? 1 : 0));
      fs::remove_all(out);
    }
}

TEST_CASE("messages to a standard error that is closed or full go nowhere, least of all into outputs") {
  const TempDir dir;
  const std::string out = (dir / "o").string(), shard = "shard " + kModel + " " + out + " --tp 2 >/dev/null";
  run_well({"shard", kModel, out, "--tp", "2"});
  const auto right = snapshot(out);
  for (const char* redirection : {" 2>&-", " 2>/dev/full", " <&- 2>&-", " --quiet <&- >&- 2>&-"}) {
    INFO(redirection);
    fs::remove_all(out);
    CHECK(WEXITSTATUS(std::system((RESHARD_PROGRAM + (" " + shard) + redirection).c_str())) == 0);
    CHECK(snapshot(out) == right);
  }
}

TEST_CASE("a dry run prints its plan, and then why it cannot run") {
  const TempDir dir;
  const std::string out = (dir / "o").string();
  run_well({"shard", kModel, out, "--tp", "2", "--quiet"});
  const auto before = snapshot(dir.path());
  const Arguments again{"shard", kModel, out, "--tp", "4", "--dry-run"};
  const ProgramResult taken = run_reshard(again), document = run_reshard(joined(again, {"--json"}));
  CHECK(taken.exit_code == 3);
  CHECK_THAT(taken.out, Says("writes    "));
  CHECK_THAT(taken.err, Says("--force"));
  CHECK(document.exit_code == 3);
  CHECK(nlohmann::json::parse(document.out).at("command") == "shard");
  run_well({"shard", kModel, (dir / "new").string(), "--tp", "4", "--dry-run"});
  CHECK((snapshot(dir.path()) == before));
}

TEST_CASE("the training state has no place where only adapters are written") {
  check_fails({"shard", kModel, "/nowhere", "--tp", "2", "--adapter", "/nowhere", "--with-optimizer"}, 2,
              {"--with-optimizer has no effect with --adapter"});
}

TEST_CASE("an empty OUT_DIR is a mistake of a script, not the default") {
  const std::string shards = testdata("golden/optimum/llama-tp2-pp2/sharded").string();
  check_fails({"consolidate", shards, ""}, 2, {"OUT_DIR is empty"});
  CHECK_FALSE(fs::exists(fs::path(shards) / "model.safetensors"));
}
