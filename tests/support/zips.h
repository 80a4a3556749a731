#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace reshard::test {

/// `value` as little-endian bytes.
template <typename Number>
std::string le_bytes(Number value) {
  std::string bytes;
  for (std::size_t i = 0; i < sizeof(Number); ++i) bytes += static_cast<char>(value >> 8 * i);
  return bytes;
}

/// Writes `value` over the bytes at `at`.
template <typename Number>
void put(std::string& bytes, std::size_t at, Number value) {
  bytes.replace(at, sizeof(Number), le_bytes(value));
}

struct ZipPart {
  std::string name;
  std::string content;
};

struct ZipOptions {
  bool zip64 = false;        // sizes and offsets in zip64 records, though they need not be
  bool descriptors = false;  // sizes and CRC after the contents, as torch writes them
  std::uint16_t padding_bytes = 0;
  std::string comment;
};

/// A correct zip archive of stored entries, written by a plain encoder of the tests' own; its CRCs are 0.
std::string zip_bytes(const std::vector<ZipPart>& parts, const ZipOptions& options = {});

/// Where the header of entry `index` begins, in the order of the directory. `zip` must be correct, with names and
/// contents that hold no signatures.
std::size_t local_header(const std::string& zip, std::size_t index);
std::size_t central_header(const std::string& zip, std::size_t index);
std::size_t end_record(const std::string& zip);

/// A file as torch.save makes it: "t/data.pkl", a storage "t/data/KEY" a part, "t/version".
std::string torch_zip(const std::string& pickle, const std::vector<ZipPart>& storages,
                      const std::string& byteorder = "little");

}  // namespace reshard::test
