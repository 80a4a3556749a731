// Inputs in a store with a scheme of its own: planned, converted to local files, and verified.

#include "reshard/engine/check/verify.h"
#include "reshard/io/local_storage.h"
#include "reshard/io/memory_files.h"
#include "reshard/io/open_store.h"
#include "reshard/layouts/core/checkpoint.h"
#include "reshard/layouts/read_checkpoint.h"
#include "reshard/plan/plan.h"
#include "support/checkpoints.h"
#include "support/refusals.h"
#include "support/requests.h"
#include "support/temp_dir.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

/// Writes a model and its shards in two layouts to `store` alone.
void write_inputs(MemoryFiles& store, const fs::path& root) {
  const TempDir temp;
  Random random(8);
  const TinyModel model;
  write_model(temp / "model", model, random_tensors(model, random), 3);
  shard(temp / "model", temp / "ranks", {.layout = "ranks", .tp = 2});
  convert(temp / "model", temp / "xser", {.layout = "optimum", .format = Format::kXser, .tp = 2});
  for (const auto& entry : fs::recursive_directory_iterator(temp.path()))
    if (entry.is_regular_file()) store.write(root / entry.path().lexically_relative(temp.path()), read_file(entry));
}

TEST_CASE("Sources in another store are planned, converted to local files and verified") {
  MemoryFiles store;
  const fs::path root = "mem://bucket/run 1";
  write_inputs(store, root);
  AllFiles files({{"mem", &store}});
  RunOptions options = unsynced();
  options.stores = {files, local_storage()};
  for (const char* source : {"model", "ranks", "xser"}) DYNAMIC_SECTION(source) {
      for (const char* layout : {"hf", "nxd"}) {
        INFO(layout);
        const TempDir output;
        RequestFields fields{.layout = layout};
        if (fields.layout == "nxd") fields.tp = 4;
        const auto job = plan_convert(files, convert_request(root / source, output / "out", fields));
        job->manifest = true;
        execute(*job, options);
        const auto map_of = [&](const fs::path& path) { return read_checkpoint(files, path, {}).map; };
        const Verification result = verify(map_of(root / "model"), map_of(output / "out"), {}, options);
        CHECK(result.same());
        CHECK(result.compared_tensors > 0);
      }
    }
  CHECK_FALSE(fs::exists("mem:"));
}

TEST_CASE("A source in another store that is written to while it is read is an error that names it") {
  MemoryFiles store;
  const fs::path root = "mem://bucket";
  write_inputs(store, root);
  AllFiles files({{"mem", &store}});
  const TempDir output;
  const auto job = plan_convert(files, convert_request(root / "model", output / "out", {}));
  const fs::path changed = job->source.files.back().path;
  const auto source = files.open(changed);
  std::string bytes(source->size_bytes(), '\0');
  source->read_at(0, std::as_writable_bytes(std::span(bytes)));
  store.write(changed, std::move(bytes));
  RunOptions options = unsynced();
  options.stores = {files, local_storage()};
  check_refused([&] { execute(*job, options); }, {.kind = ErrorKind::kIo,
                                                  .path = changed,
                                                  .says = "was replaced or modified after its header was read",
                                                  .unwritten = output / "out"});
}

}  // namespace
}  // namespace reshard::test
