#include "support/zips.h"

#include <stdexcept>

namespace reshard::test {
namespace {

using U16 = std::uint16_t;
using U32 = std::uint32_t;
using U64 = std::uint64_t;

std::size_t find_nth(const std::string& zip, const char* signature, std::size_t index) {
  std::size_t at = zip.find(signature);
  for (; index > 0 && at != zip.npos; --index) at = zip.find(signature, at + 1);
  if (at == zip.npos) throw std::runtime_error("no such record");
  return at;
}

std::string end_records(const ZipOptions& options, U64 entries, U64 begin, U64 size) {
  std::string end;
  if (options.zip64) {
    end += "PK\6\6" + le_bytes<U64>(44) + le_bytes<U16>(45) + le_bytes<U16>(45) + le_bytes<U64>(0) +
           le_bytes<U64>(entries) + le_bytes<U64>(entries) + le_bytes<U64>(size) + le_bytes<U64>(begin);
    end += "PK\6\7" + le_bytes<U32>(0) + le_bytes<U64>(begin + size) + le_bytes<U32>(1);
    entries = UINT16_MAX;
    begin = size = UINT32_MAX;
  }
  return end + "PK\5\6" + le_bytes<U32>(0) + le_bytes(static_cast<U16>(entries)) + le_bytes(static_cast<U16>(entries)) +
         le_bytes(static_cast<U32>(size)) + le_bytes(static_cast<U32>(begin)) +
         le_bytes(static_cast<U16>(options.comment.size())) + options.comment;
}

}  // namespace

std::string zip_bytes(const std::vector<ZipPart>& parts, const ZipOptions& options) {
  std::string zip;
  std::string directory;
  const U16 flags = options.descriptors ? 8 : 0;
  for (const ZipPart& part : parts) {
    const U64 at = zip.size();
    const U64 size = part.content.size();
    const std::string small = le_bytes(options.zip64 ? UINT32_MAX : static_cast<U32>(size));
    const std::string common = le_bytes<U16>(0) + le_bytes<U32>(0) + le_bytes<U32>(0);  // method, time, CRC
    const std::string sizes = options.zip64 ? le_bytes(size) + le_bytes(size) : "";
    const std::string local_extra =
        (options.zip64 ? le_bytes<U16>(1) + le_bytes<U16>(16) + sizes : "") +
        (options.padding_bytes ? "FB" + le_bytes(options.padding_bytes) + std::string(options.padding_bytes, 'Z') : "");
    const std::string extra =
        options.zip64 ? le_bytes<U16>(1) + le_bytes<U16>(24) + sizes + le_bytes(at) : std::string();
    const std::string local_small = options.descriptors ? le_bytes<U32>(0) : small;
    zip += "PK\3\4" + le_bytes<U16>(45) + le_bytes(flags) + common + local_small + local_small +
           le_bytes(static_cast<U16>(part.name.size())) + le_bytes(static_cast<U16>(local_extra.size())) + part.name +
           local_extra + part.content;
    if (options.descriptors) zip += "PK\7\x8" + le_bytes<U32>(0) + small + small;
    directory += "PK\1\2" + le_bytes<U32>(45) + le_bytes(flags) + common + small + small +
                 le_bytes(static_cast<U16>(part.name.size())) + le_bytes(static_cast<U16>(extra.size())) +
                 le_bytes<U64>(0) + le_bytes<U16>(0) + (options.zip64 ? small : le_bytes(static_cast<U32>(at))) +
                 part.name + extra;
  }
  return zip + directory + end_records(options, parts.size(), zip.size(), directory.size());
}

std::size_t local_header(const std::string& zip, std::size_t index) {
  return find_nth(zip, "PK\3\4", index);
}

std::size_t central_header(const std::string& zip, std::size_t index) {
  return find_nth(zip, "PK\1\2", index);
}

std::size_t end_record(const std::string& zip) {
  return find_nth(zip, "PK\5\6", 0);
}

std::string torch_zip(const std::string& pickle, const std::vector<ZipPart>& storages, const std::string& byteorder) {
  std::vector<ZipPart> parts{{"t/data.pkl", pickle}};
  if (!byteorder.empty()) parts.push_back({"t/byteorder", byteorder});
  for (const ZipPart& storage : storages) parts.push_back({"t/data/" + storage.name, storage.content});
  parts.push_back({"t/version", "3\n"});
  return zip_bytes(parts, {.descriptors = true});
}

}  // namespace reshard::test
