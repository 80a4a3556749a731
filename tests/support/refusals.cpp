#include "support/refusals.h"

namespace reshard::test {
namespace {

void add_missing(Texts& texts, const Texts& common) {
  if (texts.parts.empty()) texts = common;
}

}  // namespace

void check_error(const Error& error, const Refusal& refusal, const char* file, int line) {
  INFO(file << ":" << line << ": " << error.what());
  CHECK(error.kind() == refusal.kind.value_or(ErrorKind::kBadInput));
  if (refusal.path) CHECK(error.path() == refusal.path->string());
  if (refusal.tensor) CHECK(error.tensor() == *refusal.tensor);
  for (const std::string& text : refusal.says.parts) CHECK_THAT(error.what(), Says(text));
  if (refusal.what) CHECK(std::string(error.what()) == *refusal.what);
  for (const std::string& text : refusal.hint.parts) CHECK_THAT(error.hint(), Says(text));
  if (refusal.hint_end) {
    CHECK_THAT(error.hint(), Says(*refusal.hint_end));
    CHECK(error.hint().ends_with(*refusal.hint_end));
  }
  if (refusal.offset_bytes) CHECK(error.offset_bytes() == *refusal.offset_bytes);
  if (refusal.unwritten) CHECK_FALSE(std::filesystem::exists(*refusal.unwritten));
}

Error check_refused(const std::function<void()>& action, const Refusal& refusal, const char* file, int line) {
  INFO(file << ":" << line);
  const Error error = error_of(action);
  check_error(error, refusal, file, line);
  return error;
}

std::size_t check_byte_patches(const std::string& good, const std::string& bytes,
                               const std::function<void(const std::string& patched)>& read) {
  std::size_t refusals = 0;
  for (std::size_t at = 0; at < good.size(); ++at)
    for (const char byte : bytes) {
      std::string patched = good;
      patched[at] = byte;
      INFO("byte " << int{byte} << " at " << at);
      try {
        read(patched);
      } catch (const Error& error) {
        CHECK((error.kind() == ErrorKind::kBadInput || error.kind() == ErrorKind::kUnsupported));
        ++refusals;
      }
    }
  return refusals;
}

Refusal with_common(Refusal row, const Refusal& common) {
  if (!row.kind) row.kind = common.kind;
  if (!row.path) row.path = common.path;
  if (!row.tensor) row.tensor = common.tensor;
  add_missing(row.says, common.says);
  if (!row.what) row.what = common.what;
  add_missing(row.hint, common.hint);
  if (!row.hint_end) row.hint_end = common.hint_end;
  if (!row.offset_bytes) row.offset_bytes = common.offset_bytes;
  if (!row.unwritten) row.unwritten = common.unwritten;
  return row;
}

}  // namespace reshard::test
