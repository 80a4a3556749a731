// Which store a path means, and that all of them can be used as one.

#include "reshard/io/open_store.h"

#include <functional>
#include <vector>

#include "reshard/io/listed_files.h"
#include "reshard/io/local_storage.h"
#include "reshard/io/memory_files.h"
#include "support/files.h"
#include "support/refusals.h"
#include "support/temp_dir.h"

namespace reshard::test {
namespace {

TEST_CASE("The scheme of a path ends with :/") {
  struct Case {
    const char* path;
    const char* scheme;
  };
  for (const auto& [path, scheme] :
       {Case{"s3://bucket/model", "s3"}, Case{"s3:/bucket/model", "s3"}, Case{"mem://", "mem"},
        Case{"a+b-c.d://x", "a+b-c.d"}, Case{"model", ""}, Case{"/s3://model", ""}, Case{"./s3://model", ""},
        Case{"step:3/model", ""}, Case{"c:/model", ""}, Case{"://x", ""}, Case{"", ""}, Case{"s3:", ""},
        Case{"S3 x://y", ""}}) {
    INFO(path);
    CHECK(scheme_of(path) == scheme);
  }
}

TEST_CASE("A path with the scheme of a store that cannot be reached is refused, with what to do instead") {
  struct Case {
    const char* path;
    const char* hint;
  };
  for (const Case& one :
       {Case{"s3://bucket/model", "aws s3 sync"}, Case{"gs://bucket/model", "gcloud storage rsync"},
        Case{"az://account/model", "azcopy"}, Case{"https://example.org/x", "local copy"},
        Case{"mem://model", "local copy"}, Case{"run:/model", "a local path of this name is ./run:/model"},
        Case{"hf://Qwen/Qwen3-8B", "hf download Qwen/Qwen3-8B"},
        Case{"https://huggingface.co/Qwen/Qwen3-8B/tree/main", "hf download Qwen/Qwen3-8B"}}) {
    INFO(one.path);
    ListedFiles listed(all_files());
    const std::vector<std::function<void()>> calls = {
        [&] { open_storage(one.path); }, [&] { listed.kind_of(one.path); }, [&] { all_files().list(one.path); },
        [&] { all_files().is_same(one.path, "."); }};
    for (const auto& call : calls) {
      const Error error = check_refused(call, {.kind = ErrorKind::kUnsupported, .path = one.path, .says = "://"});
      CHECK_THAT(error.hint(), Says(one.hint) && !Says("main"));
    }
  }
}

TEST_CASE("Paths without a scheme are local") {
  const TempDir dir;
  write_file(dir / "f", "abc");
  CHECK(&open_storage(dir / "f") == &local_storage());
  CHECK(all_files().size_bytes(dir / "f") == 3);
  CHECK(all_files().absolute("f") == local_storage().absolute("f"));
}

TEST_CASE("A store of the caller's is found by its scheme, next to the others") {
  const TempDir dir;
  write_file(dir / "f", "abc");
  MemoryFiles memory;
  memory.write("mem://a/b/f", "in memory");
  AllFiles files({{"mem", &memory}});
  ListedFiles listed(files);
  for (Files* all : {static_cast<Files*>(&files), static_cast<Files*>(&listed)}) {
    CHECK(all->is_file("mem://a/b/f"));
    CHECK(all->is_directory("mem://a"));
    CHECK(all->kind_of("mem://a/c") == FileKind::kNone);
    CHECK(all->list("mem://a") == std::vector<DirectoryEntry>{{"b", FileKind::kDirectory}});
    CHECK(all->open("mem://a/b/f")->size_bytes() == 9);
    CHECK(all->stamp("mem://a/b/f") == memory.stamp("mem://a/b/f"));
    CHECK(all->resolve("mem://a/./b/f") == all->resolve("mem:/a/b/f"));
    CHECK(all->is_same("mem://a/b/f", "mem:/a/b/f"));
    CHECK_FALSE(all->is_same("mem://a/b/f", dir / "f"));
    CHECK(all->open(dir / "f")->size_bytes() == 3);
  }
}

TEST_CASE("A path that has the form of a model's name on the Hugging Face Hub gets the command that fetches it") {
  MemoryFiles files;
  files.write("here/model.safetensors", "");
  CHECK_THAT(nothing_at(files, "Qwen/Qwen3-8B").hint(), Says("hf download Qwen/Qwen3-8B"));
  for (const char* path : {"here/Qwen3-8B", "/Qwen/Qwen3-8B", "./Qwen3-8B", "Qwen3-8B", "a/b/c"})
    CHECK(nothing_at(files, path).hint().empty());
}

}  // namespace
}  // namespace reshard::test
