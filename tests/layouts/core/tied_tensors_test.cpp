#include "reshard/layouts/core/tied_tensors.h"

#include <algorithm>

#include "reshard/io/memory_files.h"
#include "reshard/layouts/map/chunked_map.h"
#include "support/catch.h"

namespace reshard::test {
namespace {

constexpr std::uint64_t kColumns = 3;

/// A tensor of bytes whose rows lie one after another in `file`, in chunks of `chunk` rows, or of one column each if
/// `chunk` is 0.
ChunkedTensor chunked(const std::string& name, std::uint64_t rows, std::uint32_t file, std::uint64_t chunk) {
  ChunkedTensor tensor{name, name, DType::kU8, {rows, kColumns}, {}};
  for (std::uint64_t row = 0; chunk > 0 && row < rows; row += chunk)
    tensor.chunks.push_back({{{row, 0}, {std::min(chunk, rows - row), kColumns}}, file, row * kColumns});
  for (std::uint64_t column = 0; chunk == 0 && column < kColumns; ++column)
    tensor.chunks.push_back({{{0, column}, {rows, 1}}, file, column, {kColumns, 1}});
  return tensor;
}

/// Whether a head and an embedding, cut into such chunks, are taken for one.
bool are_joined(const std::string& head, const std::string& embedding, std::uint64_t head_chunk,
                std::uint64_t embedding_chunk) {
  MemoryFiles files;
  files.write("head", head);
  files.write("embedding", embedding);
  const std::uint64_t rows = head.size() / kColumns;
  reshard::SourceMap map =
      chunked_map({{{"head", head.size()}}, {{"embedding", embedding.size()}}},
                  {chunked("head", rows, 0, head_chunk), chunked("embedding", rows, 1, embedding_chunk)}, "d");
  return join_tied(files, map, {{"head", "embedding"}}).empty();
}

std::string numbered(std::uint64_t rows) {
  std::string bytes(rows * kColumns, '\0');
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 7 + i / 251);
  return bytes;
}

TEST_CASE("A head is the embedding if all their elements are equal, however both are cut into chunks") {
  const std::uint64_t rows = 100;
  const std::string bytes = numbered(rows);
  for (const std::uint64_t chunk : {0, 1, 7, 30, 100})
    for (const std::uint64_t other : {0, 1, 8, 33, 100}) {
      CAPTURE(chunk, other);
      CHECK(are_joined(bytes, bytes, chunk, other));
      for (const std::size_t changed : {std::size_t{0}, std::size_t{149}, bytes.size() - 1}) {
        std::string head = bytes;
        head[changed] = static_cast<char>(head[changed] ^ 1);
        CHECK_FALSE(are_joined(head, bytes, chunk, other));
      }
    }
}

// Compared each with each, these chunks would take an hour.
TEST_CASE("Head and embedding of 60000 chunks are compared in the time that they take to read") {
  const std::string bytes = numbered(60000);
  CHECK(are_joined(bytes, bytes, 1, 1));
}

}  // namespace
}  // namespace reshard::test
