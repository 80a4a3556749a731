// Sources that are held against the digests that are known of them.

#include "reshard/engine/check/check_inputs.h"

#include "reshard/engine/execute.h"
#include "reshard/layouts/contents/recorded_checksums.h"
#include "reshard/plan/proof/manifest.h"
#include "support/checkpoints.h"
#include "support/files.h"
#include "support/layouts.h"
#include "support/local_files.h"
#include "support/refusals.h"
#include "support/requests.h"
#include "support/spoilers.h"
#include "support/temp_dir.h"
#include "support/thread_ranks.h"
#include "support/zips.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

Sha256Digest digest_of_file(const fs::path& file) {
  const std::string text = read_file(file);
  return sha256(std::as_bytes(std::span(text)));
}

std::map<fs::path, Sha256Digest> check_alone(const Job& job, const fs::path& against = {}) {
  Together alone;
  return check_inputs(job, unsynced(), alone, against);
}

/// The lines of a SHA256SUMS next to these files.
std::string sums_of(const std::vector<fs::path>& files) {
  std::vector<FileDigest> lines;
  for (const fs::path& file : files) lines.push_back({file.filename().string(), digest_of_file(file)});
  return sha256sums_text(lines);
}

struct Model {
  Model() {
    Random random(3);
    write_model(temp / "model", {}, random_tensors({}, random));
    hex = to_hex(digest_of_file(file));
  }
  std::unique_ptr<Job> job(const char* model = "model") const {
    return plan_shard(shard_request(temp / model, temp / "out", 2));
  }
  std::map<fs::path, Sha256Digest> check() const { return check_alone(*job()); }
  /// Writes shards with a manifest, and a SHA256SUMS.
  void shard_with_manifest() const {
    const auto planned = job();
    planned->manifest = true;
    execute(*planned, unsynced());
  }

  TempDir temp;
  fs::path file = temp / "model/model.safetensors";
  fs::path sums = temp / "model/SHA256SUMS";
  std::string hex;  // of the file
};

TEST_CASE("A SHA256SUMS beside the files is what they are held against, and gets into the manifest") {
  const Model model;
  write_file(model.sums, sums_of({model.temp / "model/config.json", model.file}));
  const auto known = model.check();
  CHECK(known.size() == 2);
  CHECK((known.at(model.file) == digest_of_file(model.file)));
  const auto job = model.job();
  job->source_digests = known;
  job->manifest = true;
  execute(*job, unsynced());
  const Manifest manifest = parse_manifest(read_file(model.temp / "out/reshard.manifest.json"), "m");
  for (const Manifest::File& file : manifest.sources) CHECK(file.digest.has_value());
}

TEST_CASE("A file that has another digest is named, with both and with who says so") {
  const Model model;
  write_file(model.sums, std::string(64, 'a') + "  model.safetensors\n");
  check_refused([&] { model.check(); },
                {.path = model.file, .says = {model.hex, std::string(64, 'a'), model.sums.string()}});
  const auto thrown = run_ranks(3, [&](Together& together) { check_inputs(*model.job(), unsynced(), together); });
  for (const auto& one : thrown) CHECK((one && one->path() == model.file.string()));
}

TEST_CASE("Links into the cache of a download are held against the names of their blobs") {
  const Model model;
  const fs::path blob = model.temp / "models--a--b/blobs" / model.hex, snapshot = "models--a--b/snapshots/0a1b";
  const fs::path link = model.temp / snapshot / "model.safetensors", config = link.parent_path() / "config.json";
  fs::create_directories(blob.parent_path());
  fs::create_directories(link.parent_path());
  fs::rename(model.file, blob);
  fs::create_symlink(fs::path("../../blobs") / model.hex, link);
  fs::copy_file(model.temp / "model/config.json", config);
  const auto expected = expected_digests(local_storage(), {link, config});
  REQUIRE(expected.at(0));
  CHECK(to_hex(expected[0]->digest) == model.hex);
  CHECK_FALSE(expected.at(1));
  CHECK(check_alone(*model.job(snapshot.c_str())).size() == 1);
  flip_byte(blob, fs::file_size(blob) - 1);
  check_refused([&] { check_alone(*model.job(snapshot.c_str())); }, {.path = link});
}

TEST_CASE("A downloaded directory has the digests of large files in its metadata, also those of subfolders") {
  const Model model;
  const bool in_subfolder = GENERATE(false, true);
  const fs::path download = model.temp / "model/.cache/huggingface/download";
  const std::string directory = in_subfolder ? "model/sub" : "model";
  if (in_subfolder) {
    fs::rename(model.temp / "model", model.temp / "sub");
    fs::create_directories(model.temp / "model");
    fs::rename(model.temp / "sub", model.temp / "model/sub");
  }
  const fs::path file = model.temp / directory / "model.safetensors";
  const fs::path metadata = download / (in_subfolder ? "sub" : "") / "model.safetensors.metadata";
  const auto check = [&](const std::string& digest) {
    write_file(metadata, std::string(40, '1') + "\n" + digest + "\n1700000000.0\n");
    Progress progress;
    Together alone;
    const auto known = check_inputs(*model.job(directory.c_str()), {.progress = &progress, .sync = false}, alone);
    CHECK(progress.done_bytes == fs::file_size(file));
    return known.size();
  };
  CHECK(check(model.hex) == 1);
  CHECK(expected_digests(local_storage(), {file}).at(0)->from == metadata);
  check_refused([&] { check(std::string(64, 'b')); }, {.path = file});
  check_refused([&] { check(std::string(40, 'b')); },
                {.says = "no SHA-256 is known for its tensor file"});  // of a small file
}

TEST_CASE("A file of tensors that no list names is an error, though others are checked") {
  const Model model;
  Random random(4);
  const fs::path two = model.temp / "two";
  write_model(two, {}, random_tensors({}, random), 2);
  const fs::path first = two / "model-00001-of-00002.safetensors", second = two / "model-00002-of-00002.safetensors";
  write_file(two / "SHA256SUMS", sums_of({first}));
  const Error error = check_refused([&] { check_alone(*model.job("two")); }, {.path = second});
  CHECK(error.message() == "no SHA-256 is known for it, the only such file of 2");
  write_file(two / "SHA256SUMS", sums_of({first, second}));
  CHECK(check_alone(*model.job("two")).size() == 2);
}

TEST_CASE("Rank files are held against the SHA256SUMS of the directory above, or that of another copy") {
  const Model model;
  model.shard_with_manifest();
  const bool copied = GENERATE(false, true);  // whose list is that of the first
  const fs::path out = model.temp / "out", checked = copied ? model.temp / "copy" : out;
  if (copied) {
    fs::copy(out, checked, fs::copy_options::recursive);
    fs::remove(checked / "SHA256SUMS");
  }
  const auto plan = [&] { return plan_consolidate(consolidate_request(checked, model.temp / "whole")); };
  const auto check = [&] { return check_alone(*plan(), copied ? out : fs::path()); };
  CHECK(check().size() >= 2);
  const fs::path file = plan()->source.files.at(1).path;
  flip_byte(file, fs::file_size(file) - 1);
  check_refused(check, {.path = file, .says = (out / "SHA256SUMS").string()});
}

TEST_CASE("A list may have any form that sha256sum takes, and files of others in it") {
  const Model model;
  const fs::path above = model.temp / "SHA256SUMS";
  for (const std::string& text :
       {"SHA256 (model.safetensors) = " + model.hex, model.hex + "  " + model.file.string(),
        "# weights\n" + model.hex + "  ../model/model.safetensors", "no line\n" + model.hex + " *model.safetensors"}) {
    write_file(model.sums, text + "\n");
    CHECK(model.check().size() == 1);
  }
  write_file(above, "not one\n" + std::string(64, 'c') + "  /etc/passwd\n");  // of something else
  CHECK(model.check().size() == 1);
  fs::remove(model.sums);
  check_refused([&] { model.check(); },
                {.path = model.temp / "model", .hint = above.string() + " are not SHA-256 entries: 1"});
}

TEST_CASE("A list with two digests of a file says nothing of it, and is refused") {
  const Model model;
  const std::string line = model.hex + "  model.safetensors\n";
  write_file(model.sums, line + line);
  CHECK(model.check().size() == 1);
  write_file(model.sums, line + std::string(64, 'd') + "  ./model.safetensors\n");
  check_refused([&] { model.check(); }, {.path = model.sums, .says = "lists " + model.file.string() + " twice"});
}

TEST_CASE("A clone without its files has pointers that say what their SHA-256 is") {
  const Model model;
  const fs::path clone = model.temp / "clone", pointer = clone / "model.safetensors";
  const auto write_pointer = [&](const std::string& oid) {
    write_file(pointer, "version https://git-lfs.github.com/spec/v1\noid sha256:" + oid + "\nsize " +
                            std::to_string(fs::file_size(model.file)) + "\n");
  };
  const auto check = [&] { return check_alone(*model.job(), clone); };
  write_pointer(model.hex);
  write_file(model.sums, std::string(64, 'a') + "  model.safetensors\n");  // the clone comes first
  CHECK(check().size() == 1);
  write_pointer(std::string(64, 'b'));
  check_refused(check, {.path = model.file, .says = "expected " + std::string(64, 'b') + " from " + pointer.string()});
  write_pointer("12");
  check_refused(check, {.path = pointer});
  fs::remove(model.sums);
  write_file(pointer, "text");
  check_refused(check, {.hint = "`check-against`"});
  write_file(clone / "SHA256SUMS", model.hex + "  model.safetensors\n");
  CHECK(check().size() == 1);
  fs::remove_all(clone);
  check_refused(check, {.path = clone});
}

TEST_CASE("Where no digest is known there is nothing to check, and that is an error") {
  const Model model;
  check_refused([&] { model.check(); }, {.hint = "SHA256SUMS"});
}

/// Checks the tensor files in a directory.
void check_tensors(const fs::path& directory) {
  Job job;
  Checkpoint checkpoint = read_checkpoint(directory, {.use = ConfigUse::kLenient});
  job.source_directory = directory;
  job.source = std::move(checkpoint.map);
  CHECK(check_alone(job).empty());
}

TEST_CASE("Files of torch.save without a known SHA-256 are held against the CRC-32 of what is in them") {
  const Model model;
  const auto [kind, format] = GENERATE(table<std::string, Format>({{"ranks", Format::kPytorch},
                                                                   {"optimum", Format::kPytorch},
                                                                   {"optimum", Format::kXser},
                                                                   {"dcp", Format::kPytorch}}));
  CAPTURE(kind, format);
  Request request = convert_request(model.temp / "model", model.temp / "ckpt");
  request.target.layout = layout(kind);
  request.target.tp = 2;
  if (kind != "dcp") request.target.format = format;
  convert(request);
  const auto job = plan_convert(convert_request(model.temp / "ckpt", model.temp / "out"));
  CHECK(check_alone(*job).empty());
  const std::size_t count = job->source.stored.size();
  for (const std::size_t index : {std::size_t{0}, count / 2, count - 1}) {
    const StoredTensor& stored = job->source.stored[index];
    const fs::path file = job->source.files[stored.file].path;
    const std::string good = read_file(file);
    flip_byte(file, stored.offset_bytes + stored.size_bytes() - 1);
    for (const std::uint32_t ranks : {1u, 3u}) {
      const auto thrown = run_ranks(ranks, [&](Together& together) { check_inputs(*job, unsynced(), together); });
      for (const auto& error : thrown) {
        REQUIRE(error);
        check_error(*error, {.path = file, .says = "bytes that begins here has CRC-32"});
        CHECK(error->offset_bytes().value() <= stored.offset_bytes);
      }
    }
    write_file(file, good);
  }
  CHECK(check_alone(*job).empty());
}

TEST_CASE("The CRC-32s that torch itself wrote are right") {
  for (const char* name :
       {"dcp/qwen3-fsdp1-accelerate/sharded", "dcp/llama-torch2.9-fsdp2-r2/sharded", "dcp/llama-plain/sharded",
        "deepspeed/qwen3-zero3-r3/sharded", "fsdp_ranks/llama-hsdp2x2/sharded", "optimum/llama-tp2-pp2/sharded"}) {
    INFO(name);
    check_tensors(testdata(fs::path("golden") / name));
  }
}

TEST_CASE("A torch file without CRC-32s, or compressed by another program, is not known to be whole") {
  const TempDir temp;
  const std::vector<ZipPart> parts{{"a/data.pkl", "x"}, {"a/data/0", "yy"}};
  for (const bool recorded : {true, false}) {
    std::string bytes = zip_bytes(parts, {});
    for (std::size_t at = bytes.find("PK\1\2"); at != bytes.npos; at = bytes.find("PK\1\2", at + 1))
      put<std::uint32_t>(bytes, at + 16, recorded ? 1 : 0);
    write_file(temp / "f.pt", bytes);
    const auto ranges = recorded_checksums(local_storage(), {{temp / "f.pt", bytes.size()}});
    CHECK(ranges.has_value() == recorded);
    if (ranges) CHECK(ranges->size() == 2);
  }
  write_file(temp / "f.pt", "PK");
  CHECK_FALSE(recorded_checksums(local_storage(), {{temp / "f.pt", 2}}));
}

}  // namespace
}  // namespace reshard::test
