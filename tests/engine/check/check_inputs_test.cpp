// Sources that are held against the digests that are known of them.

#include "reshard/engine/check/check_inputs.h"

#include "reshard/engine/execute.h"
#include "reshard/layouts/contents/recorded_checksums.h"
#include "reshard/plan/proof/manifest.h"
#include "support/checkpoints.h"
#include "support/files.h"
#include "support/layouts.h"
#include "support/local_files.h"
#include "support/models.h"
#include "support/refusals.h"
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

struct Model {
  Model() {
    const TinyModel model;
    Random random(3);
    write_model(temp / "model", model, random_tensors(model, random));
  }
  std::map<fs::path, Sha256Digest> check() const {
    Together alone;
    return check_inputs(*job(), unsynced(), alone);
  }
  std::unique_ptr<Job> job() const { return plan_shard(shard_request(temp / "model", temp / "out", 2)); }

  TempDir temp;
  fs::path file = temp / "model/model.safetensors";
};

TEST_CASE("A SHA256SUMS beside the files is what they are held against, and gets into the manifest") {
  const Model model;
  const Sha256Digest digest = digest_of_file(model.file);
  write_file(model.temp / "model/SHA256SUMS",
             sha256sums_text(
                 {{"config.json", digest_of_file(model.temp / "model/config.json")}, {"model.safetensors", digest}}));
  const auto known = model.check();
  CHECK(known.size() == 2);
  CHECK((known.at(model.file) == digest));
  const auto job = model.job();
  job->source_digests = known;
  job->manifest = true;
  execute(*job, unsynced());
  const Manifest manifest = parse_manifest(read_file(model.temp / "out/reshard.manifest.json"), "m");
  for (const Manifest::File& file : manifest.sources) CHECK(file.digest.has_value());
}

TEST_CASE("A file that has another digest is named, with both and with who says so") {
  const Model model;
  write_file(model.temp / "model/SHA256SUMS", std::string(64, 'a') + "  model.safetensors\n");
  check_refused([&] { model.check(); }, {.path = model.file,
                                         .says = {to_hex(digest_of_file(model.file)), std::string(64, 'a'),
                                                  (model.temp / "model/SHA256SUMS").string()}});
  const auto thrown = run_ranks(3, [&](Together& together) { check_inputs(*model.job(), unsynced(), together); });
  for (const auto& one : thrown) CHECK((one && one->path() == model.file.string()));
}

TEST_CASE("Links into the cache of a download are held against the names of their blobs") {
  const Model model;
  const std::string digest = to_hex(digest_of_file(model.file));
  const fs::path blobs = model.temp / "models--a--b/blobs", snapshot = model.temp / "models--a--b/snapshots/0a1b";
  fs::create_directories(blobs);
  fs::create_directories(snapshot);
  fs::rename(model.file, blobs / digest);
  fs::create_symlink(fs::path("../../blobs") / digest, snapshot / "model.safetensors");
  fs::copy_file(model.temp / "model/config.json", snapshot / "config.json");
  const auto expected = expected_digests(local_storage(), {snapshot / "model.safetensors"}).front();
  REQUIRE(expected);
  CHECK(to_hex(expected->digest) == digest);
  CHECK_FALSE(expected_digests(local_storage(), {snapshot / "config.json"}).front());
  const auto job = plan_shard(shard_request(snapshot, model.temp / "out", 2));
  Together alone;
  CHECK(check_inputs(*job, unsynced(), alone).size() == 1);
  std::string text = read_file(blobs / digest);
  text.back() = static_cast<char>(text.back() ^ 1);
  write_file(blobs / digest, text);
  CHECK(error_of([&] {
          check_inputs(*plan_shard(shard_request(snapshot, model.temp / "out", 2)), unsynced(), alone);
        }).kind() == ErrorKind::kBadInput);
}

TEST_CASE("A downloaded directory has the digests of large files in its metadata") {
  const Model model;
  const fs::path metadata = model.temp / "model/.cache/huggingface/download/model.safetensors.metadata";
  fs::create_directories(metadata.parent_path());
  const std::string commit(40, '1');
  write_file(metadata, commit + "\n" + to_hex(digest_of_file(model.file)) + "\n1700000000.0\n");
  CHECK(model.check().size() == 1);
  write_file(metadata, commit + "\n" + std::string(64, 'b') + "\n1700000000.0\n");
  CHECK(error_of([&] { model.check(); }).kind() == ErrorKind::kBadInput);
  write_file(metadata, commit + "\n" + std::string(40, 'b') + "\n1700000000.0\n");  // of a small file: another hash
  CHECK_THAT(error_of([&] { model.check(); }).what(), Says("no SHA-256 is known of its file"));
}

TEST_CASE("A file of tensors that no list names is an error, though others are checked") {
  const Model model;
  const TinyModel tiny;
  Random random(4);
  const fs::path two = model.temp / "two";
  write_model(two, tiny, random_tensors(tiny, random), 2);
  const fs::path first = two / "model-00001-of-00002.safetensors", second = two / "model-00002-of-00002.safetensors";
  const auto check = [&] {
    Together alone;
    return check_inputs(*plan_shard(shard_request(two, model.temp / "out", 2)), unsynced(), alone);
  };
  const auto list = [&](const std::vector<fs::path>& files) {
    std::vector<FileDigest> lines;
    for (const fs::path& file : files) lines.push_back({file.filename().string(), digest_of_file(file)});
    write_file(two / "SHA256SUMS", sha256sums_text(lines));
  };
  list({first});
  const Error error = check_refused(check, {.path = second});
  CHECK(error.message() == "no SHA-256 is known of it, the only such file of 2");
  list({first, second});
  CHECK(check().size() == 2);
}

TEST_CASE("Rank files are held against the SHA256SUMS of the directory above, which a manifest has made") {
  const Model model;
  const auto job = model.job();
  job->manifest = true;
  execute(*job, unsynced());
  ConsolidateRequest request;
  request.source.path = model.temp / "out";
  request.output_directory = model.temp / "whole";
  Together alone;
  const auto consolidate = plan_consolidate(request);
  CHECK(check_inputs(*consolidate, unsynced(), alone).size() >= 2);
  const fs::path file = consolidate->source.files.at(1).path;
  std::string text = read_file(file);
  text.back() = static_cast<char>(text.back() ^ 1);
  write_file(file, text);
  check_refused([&] { check_inputs(*plan_consolidate(request), unsynced(), alone); },
                {.path = file, .says = (model.temp / "out/SHA256SUMS").string()});
}

TEST_CASE("Rank files are held against the list of another copy, in whatever folder of it they are") {
  const Model model;
  const auto job = model.job();
  job->manifest = true;
  execute(*job, unsynced());
  fs::copy(model.temp / "out", model.temp / "copy", fs::copy_options::recursive);
  fs::remove(model.temp / "copy/SHA256SUMS");
  ConsolidateRequest request;
  request.source.path = model.temp / "copy";
  request.output_directory = model.temp / "whole";
  Together alone;
  const auto check = [&] { return check_inputs(*plan_consolidate(request), unsynced(), alone, model.temp / "out"); };
  CHECK(check().size() >= 2);
  const fs::path file = plan_consolidate(request)->source.files.at(1).path;
  std::string text = read_file(file);
  text.back() = static_cast<char>(text.back() ^ 1);
  write_file(file, text);
  check_refused(check, {.path = file, .says = (model.temp / "out/SHA256SUMS").string()});
}

TEST_CASE("A list may have any form that sha256sum takes, and files of others in it") {
  const Model model;
  const std::string hex = to_hex(digest_of_file(model.file));
  const fs::path sums = model.temp / "model/SHA256SUMS", above = model.temp / "SHA256SUMS";
  for (const std::string& text :
       {"SHA256 (model.safetensors) = " + hex + "\n", hex + "  " + model.file.string() + "\n",
        "# weights\n" + hex + "  ../model/model.safetensors\n", "no line\n" + hex + " *model.safetensors\n"}) {
    write_file(sums, text);
    CHECK(model.check().size() == 1);
  }
  write_file(above, "not one\n" + std::string(64, 'c') + "  /etc/passwd\n");  // of something else
  CHECK(model.check().size() == 1);
  fs::remove(sums);
  check_refused([&] { model.check(); },
                {.path = model.temp / "model", .hint = above.string() + " these lines are no SHA-256 of a file: 1"});
}

TEST_CASE("A list with two digests of a file says nothing of it, and is refused") {
  const Model model;
  const fs::path sums = model.temp / "model/SHA256SUMS";
  const std::string line = to_hex(digest_of_file(model.file)) + "  model.safetensors\n";
  write_file(sums, line + line);
  CHECK(model.check().size() == 1);
  write_file(sums, line + std::string(64, 'd') + "  ./model.safetensors\n");
  check_refused([&] { model.check(); }, {.path = sums, .says = "lists " + model.file.string() + " twice"});
}

TEST_CASE("Files in a subfolder of a downloaded directory have their digests in its metadata") {
  const Model model;
  fs::rename(model.temp / "model", model.temp / "sub");
  fs::create_directories(model.temp / "model");
  fs::rename(model.temp / "sub", model.temp / "model/sub");
  const fs::path file = model.temp / "model/sub/model.safetensors";
  const fs::path metadata = model.temp / "model/.cache/huggingface/download/sub/model.safetensors.metadata";
  fs::create_directories(metadata.parent_path());
  write_file(metadata, std::string(40, '1') + "\n" + to_hex(digest_of_file(file)) + "\n1700000000.0\n");
  const auto expected = expected_digests(local_storage(), {file}).front();
  REQUIRE(expected);
  CHECK((expected->digest == digest_of_file(file)));
  CHECK(expected->from == metadata);
  Together alone;
  Progress progress;
  RunOptions options = unsynced();
  options.progress = &progress;
  const auto job = plan_shard(shard_request(model.temp / "model/sub", model.temp / "out", 2));
  CHECK(check_inputs(*job, options, alone).size() == 1);
  CHECK(progress.done_bytes == fs::file_size(file));
}

TEST_CASE("A clone without its files has pointers that say what their SHA-256 is") {
  const Model model;
  const fs::path clone = model.temp / "clone", pointer = clone / "model.safetensors";
  fs::create_directories(clone);
  const auto write_pointer = [&](const std::string& oid) {
    write_file(pointer, "version https://git-lfs.github.com/spec/v1\noid " + oid + "\nsize " +
                            std::to_string(fs::file_size(model.file)) + "\n");
  };
  const auto check = [&] {
    Together alone;
    return check_inputs(*model.job(), unsynced(), alone, clone);
  };
  const std::string hex = to_hex(digest_of_file(model.file));
  write_pointer("sha256:" + hex);
  write_file(model.temp / "model/SHA256SUMS", std::string(64, 'a') + "  model.safetensors\n");  // the clone comes first
  CHECK(check().size() == 1);
  write_pointer("sha256:" + std::string(64, 'b'));
  check_refused(check, {.path = model.file, .says = "as " + pointer.string() + " says"});
  write_pointer("sha256:12");
  check_refused(check, {.path = pointer});
  fs::remove(model.temp / "model/SHA256SUMS");
  write_file(pointer, "text");
  CHECK_THAT(error_of(check).hint(), Says("`check-against`"));
  write_file(clone / "SHA256SUMS", hex + "  model.safetensors\n");
  CHECK(check().size() == 1);
  fs::remove_all(clone);
  CHECK(error_of(check).path() == clone.string());
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
  Together alone;
  CHECK(check_inputs(job, unsynced(), alone).empty());
}

TEST_CASE("Files of torch.save without a known SHA-256 are held against the CRC-32 of what is in them") {
  const Model model;
  const auto [kind, format] = GENERATE(table<std::string, Format>({{"ranks", Format::kPytorch},
                                                                   {"optimum", Format::kPytorch},
                                                                   {"optimum", Format::kXser},
                                                                   {"dcp", Format::kPytorch}}));
  CAPTURE(kind, format);
  ConvertRequest request = convert_request(model.temp / "model", model.temp / "ckpt");
  request.target.layout = layout(kind);
  request.target.tp = 2;
  if (kind != "dcp") request.target.format = format;
  convert(request);
  const auto job = plan_convert(convert_request(model.temp / "ckpt", model.temp / "out"));
  Together alone;
  CHECK(check_inputs(*job, unsynced(), alone).empty());
  const std::size_t count = job->source.stored.size();
  for (const std::size_t index : {std::size_t{0}, count / 2, count - 1}) {
    const StoredTensor& stored = job->source.stored[index];
    const fs::path file = job->source.files[stored.file].path;
    const std::string good = read_file(file);
    std::string bad = good;
    bad[stored.offset_bytes + stored.size_bytes - 1] ^= 4;
    write_file(file, bad);
    for (const std::uint32_t ranks : {1u, 3u}) {
      const auto thrown = run_ranks(ranks, [&](Together& together) { check_inputs(*job, unsynced(), together); });
      for (const auto& error : thrown) {
        REQUIRE(error);
        CHECK(error->kind() == ErrorKind::kBadInput);
        CHECK(error->path() == file.string());
        REQUIRE(error->offset_bytes());
        CHECK(*error->offset_bytes() <= stored.offset_bytes);
        CHECK_THAT(error->what(), Says("of a zip entry that begin here have CRC-32"));
      }
    }
    write_file(file, good);
  }
  CHECK(check_inputs(*job, unsynced(), alone).empty());
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
    const auto ranges = recorded_checksums(local_storage(), {temp / "f.pt", bytes.size()});
    CHECK(ranges.has_value() == recorded);
    if (ranges) CHECK(ranges->size() == 2);
  }
  write_file(temp / "f.pt", "PK");
  CHECK_FALSE(recorded_checksums(local_storage(), {temp / "f.pt", 2}));
}

}  // namespace
}  // namespace reshard::test
