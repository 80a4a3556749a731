#include "reshard/specs/config/model_config.h"

#include "reshard/base/json.h"
#include "support/files.h"
#include "support/local_files.h"
#include "support/refusals.h"
#include "support/temp_dir.h"

namespace reshard::test {
namespace {

ModelConfig read_text(const TempDir& dir, const std::string& text) {
  write_file(dir / kConfigFile, text);
  return read_model_config(dir.path());
}

TEST_CASE("A configuration gives its model_type and every other key, also NaN and infinities") {
  const TempDir dir;
  const ModelConfig config =
      read_text(dir, R"({"time_step_limit":[0.0,Infinity],"x":NaN,"model_type":"llama","hidden_size":32})");
  CHECK(config.model_type == "llama");
  CHECK(json_text(*config.json) ==
        R"({"hidden_size":32,"model_type":"llama","time_step_limit":[0.0,Infinity],"x":NaN})");
  CHECK(config.path == dir / kConfigFile);
  for (const char* text : {"{}", R"({"model_type":null})"}) CHECK(read_text(dir, text).model_type.empty());
}

TEST_CASE("A directory without config.json is named") {
  const TempDir dir;
  for (const auto& directory : {dir.path(), dir / "no"})
    check_refused([&] { read_model_config(directory); },
                  {.path = directory, .says = "no config.json", .hint = "config.json"});
}

TEST_CASE("A configuration that is no object or has no usable model_type is refused") {
  const TempDir dir;
  check_each_refused([&](const std::string& text) { read_text(dir, text); }, {.path = dir / kConfigFile},
                     {{"", "not valid JSON"},
                      {"[]", "expected an object"},
                      {R"({"model_type":7})", "\"model_type\" is 7, expected a string"},
                      {R"({"model_type":"a","model_type":"b"})", "\"model_type\" twice"}});
}

}  // namespace
}  // namespace reshard::test
