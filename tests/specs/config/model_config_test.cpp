#include "reshard/specs/config/model_config.h"

#include "reshard/base/json.h"
#include "support/files.h"
#include "support/local_files.h"
#include "support/refusals.h"
#include "support/temp_dir.h"

namespace reshard::test {
namespace {

Error refused(const std::string& text) {
  const TempDir dir;
  write_file(dir / kConfigFile, text);
  return check_refused([&] { read_model_config(dir.path()); }, {.path = dir / kConfigFile});
}

TEST_CASE("A configuration gives its model_type and every other key") {
  const TempDir dir;
  write_file(dir / kConfigFile, R"({"model_type":"llama","hidden_size":32})");
  const ModelConfig config = read_model_config(dir.path());
  CHECK(config.model_type == "llama");
  CHECK(config.json->at("hidden_size") == 32);
  CHECK(config.path == dir / kConfigFile);
}

TEST_CASE("A configuration may hold NaN and infinities, as Python's json module writes them") {
  const TempDir dir;
  write_file(dir / kConfigFile, R"({"time_step_limit":[0.0,Infinity],"x":NaN,"model_type":"llama"})");
  const ModelConfig config = read_model_config(dir.path());
  CHECK(config.model_type == "llama");
  CHECK(json_text(*config.json) == R"({"model_type":"llama","time_step_limit":[0.0,Infinity],"x":NaN})");
}

TEST_CASE("A directory without config.json is named") {
  const TempDir dir;
  for (const auto& directory : {dir.path(), dir / "no"}) {
    const Error error =
        check_refused([&] { read_model_config(directory); }, {.path = directory, .says = "no config.json"});
    CHECK_FALSE(error.hint().empty());
  }
}

TEST_CASE("A configuration may have no model_type") {
  for (const char* text : {"{}", R"({"model_type":null})"}) {
    const TempDir dir;
    write_file(dir / "config.json", text);
    CHECK(read_model_config(dir.path()).model_type.empty());
  }
}

TEST_CASE("A configuration that is no object or has no usable model_type is refused") {
  CHECK_THAT(refused("").what(), Says("not valid JSON"));
  CHECK_THAT(refused("{").what(), Says("not valid JSON"));
  CHECK_THAT(refused("[]").what(), Says("expected an object"));
  CHECK_THAT(refused(R"({"model_type":7})").what(), Says("\"model_type\" is 7, expected a string"));
  CHECK_THAT(refused(R"({"model_type":"a","model_type":"b"})").what(), Says("\"model_type\" twice"));
}

}  // namespace
}  // namespace reshard::test
