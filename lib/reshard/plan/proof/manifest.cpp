#include "reshard/plan/proof/manifest.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <set>
#include <span>

#include "reshard/base/error.h"
#include "reshard/base/json.h"
#include "reshard/base/strings.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kVersion = 1;
constexpr const char* kManifest = "manifest";
constexpr const char* kDamaged = "the manifest was edited or damaged; recreate it with `manifest`";

/// Escapes a name as coreutils does. The line of an escaped name begins with a backslash.
std::string escaped_name(const std::string& name, bool& escaped) {
  std::string out;
  for (const char c : name) {
    escaped = escaped || c == '\\' || c == '\n' || c == '\r';
    if (c == '\\')
      out += "\\\\";
    else if (c == '\n')
      out += "\\n";
    else if (c == '\r')
      out += "\\r";
    else
      out += c;
  }
  return out;
}

/// Returns std::nullopt for an unknown escape.
std::optional<std::string> unescaped_name(std::string_view name) {
  std::string out;
  for (std::size_t i = 0; i < name.size(); ++i) {
    if (name[i] != '\\') {
      out += name[i];
      continue;
    }
    if (++i == name.size()) return std::nullopt;
    if (name[i] == '\\')
      out += '\\';
    else if (name[i] == 'n')
      out += '\n';
    else if (name[i] == 'r')
      out += '\r';
    else
      return std::nullopt;
  }
  return out;
}

bool stays_inside(const std::string& path) {
  const fs::path relative(path);
  if (path.empty() || relative.is_absolute()) return false;
  return std::none_of(relative.begin(), relative.end(), [](const fs::path& part) { return part == ".."; });
}

/// The path and the hexadecimal digest of a line.
struct LineParts {
  std::string_view path;
  std::string_view hex;
};

/// Parses "HEX  PATH", "HEX *PATH" and "HEX PATH" of sha256sum.
std::optional<LineParts> plain_line(std::string_view line) {
  constexpr std::size_t kHex = 64;
  if (line.size() < kHex + 2 || line[kHex] != ' ') return std::nullopt;
  std::string_view path = line.substr(kHex + 1);
  if (path[0] == ' ' || path[0] == '*') path.remove_prefix(1);
  return LineParts{path, line.substr(0, kHex)};
}

/// Parses "SHA256 (PATH) = HEX" of BSD, and "SHA256(PATH)= HEX" of OpenSSL.
std::optional<LineParts> tagged_line(std::string_view line) {
  constexpr std::string_view kTag = "SHA256";
  if (!line.starts_with(kTag)) return std::nullopt;
  line.remove_prefix(kTag.size());
  if (line.starts_with(' ')) line.remove_prefix(1);
  const auto close = line.rfind(')');
  if (!line.starts_with('(') || close == std::string_view::npos) return std::nullopt;
  std::string_view hex = line.substr(close + 1);
  if (hex.starts_with(' ')) hex.remove_prefix(1);
  if (!hex.starts_with("= ")) return std::nullopt;
  return LineParts{line.substr(1, close - 1), hex.substr(2)};
}

std::optional<FileDigest> parse_line(std::string_view line) {
  const bool escaped = line.starts_with('\\');
  if (escaped) line.remove_prefix(1);
  auto parts = tagged_line(line);
  if (!parts) parts = plain_line(line);
  if (!parts || parts->path.empty()) return std::nullopt;
  const auto digest = sha256_of_hex(parts->hex);
  if (!digest) return std::nullopt;
  std::optional<std::string> name(parts->path);
  if (escaped) name = unescaped_name(*name);
  if (!name) return std::nullopt;
  if (name->starts_with("./")) name->erase(0, 2);  // as `find -exec sha256sum` lists paths
  return FileDigest{*name, *digest};
}

/// Calls `take` with the number of each line that is neither empty nor a comment, and with its content; std::nullopt if
/// the line is malformed.
void for_each_line(std::string_view text,
                   const std::function<void(std::uint64_t number, std::optional<FileDigest> file)>& take) {
  for (std::uint64_t number = 1; !text.empty(); ++number) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (!line.empty() && line[0] != '#') take(number, parse_line(line));
  }
}

/// Formats an array, one item per line.
template <typename Items, typename Line>
std::string lines(const char* key, const Items& items, const Line& line) {
  std::string text = fmt::format("\"{}\": [", key);
  const char* separator = "\n";
  for (const auto& item : items) {
    text += separator + line(item);
    separator = ",\n";
  }
  return text + (items.empty() ? "]" : "\n]");
}

std::string quoted(const std::string& text) {
  return json_text(Json(text));
}

std::string file_line(const Manifest::File& file) {
  std::string line = fmt::format("{{\"path\": {}, \"bytes\": {}", quoted(file.path), file.size_bytes);
  if (file.digest) line += fmt::format(", \"sha256\": \"{}\"", to_hex(*file.digest));
  return line + "}";
}

std::string tensor_line(const Manifest::Tensor& tensor) {
  std::string line =
      fmt::format("{{\"name\": {}, \"dtype\": \"{}\", \"shape\": [{}], \"sha256\": \"{}\"", quoted(tensor.name),
                  name(tensor.dtype), fmt::join(tensor.shape, ", "), to_hex(tensor.digest.digest));
  if (tensor.role != TensorRole::kParameter) line += fmt::format(", \"role\": \"{}\"", name(tensor.role));
  if (!tensor.digest.leaves.empty()) {
    line += ", \"leaves\": [";
    const char* separator = "\"";
    for (const Sha256Digest& leaf : tensor.digest.leaves) {
      line += separator + to_hex(leaf) + "\"";
      separator = ", \"";
    }
    line += "]";
  }
  return line + "}";
}

std::string option_text(const Manifest::OptionValue& value) {
  return json_text(std::visit([](const auto& one) { return Json(one); }, value));
}

Manifest::OptionValue option_of(const JsonObject& options, const std::string& name, const Json& value) {
  if (value.is_boolean()) return value.get<bool>();
  if (value.is_number_unsigned()) return value.get<std::uint64_t>();
  if (!value.is_string()) options.fail(name, "a text, a whole number or a switch");
  return value.get<std::string>();
}

Sha256Digest digest_at(const JsonObject& object, const char* key) {
  const auto digest = sha256_of_hex(object.string_at(key));
  if (!digest) object.fail(key, "64 hexadecimal digits");
  return *digest;
}

std::vector<Manifest::File> files_at(const JsonObject& object, const char* key, const fs::path& path) {
  std::vector<Manifest::File> files;
  for (const JsonObject& one : object.objects_at(key)) {
    Manifest::File& file = files.emplace_back();
    file.path = one.string_at("path");
    if (!stays_inside(file.path))
      throw Error(ErrorKind::kBadInput, fmt::format("{}[{}].path: {} leads out of the directory", key, files.size() - 1,
                                                    printable(file.path)))
          .in(path)
          .hint(kDamaged);
    file.size_bytes = one.unsigned_at("bytes");
    if (one.has("sha256")) file.digest = digest_at(one, "sha256");
  }
  return files;
}

Manifest::Tensor tensor_of(const JsonObject& object) {
  Manifest::Tensor tensor;
  tensor.name = object.string_at("name");
  const auto dtype = dtype_from_name(object.string_at("dtype"));
  if (!dtype) object.fail("dtype", "a dtype that is known");
  tensor.dtype = *dtype;
  for (const std::uint64_t size : object.sizes_at("shape", "an array of whole numbers")) tensor.shape.push_back(size);
  if (object.has("role")) {
    const auto role = tensor_role_from_name(object.string_at("role"));
    if (!role) object.fail("role", "a role that is known");
    tensor.role = *role;
  }
  tensor.digest.digest = digest_at(object, "sha256");
  if (!object.has("leaves")) return tensor;
  for (const Json& leaf : object.array_at("leaves")) {
    const auto digest = leaf.is_string() ? sha256_of_hex(leaf.get_ref<const std::string&>()) : std::nullopt;
    if (!digest) object.fail("leaves", "an array of 64 hexadecimal digits each");
    tensor.digest.leaves.push_back(*digest);
  }
  if (sha256(std::as_bytes(std::span(tensor.digest.leaves))) != tensor.digest.digest)
    throw Error(ErrorKind::kBadInput, "its leaves do not make its digest")
        .in(object.file().path)
        .tensor(tensor.name)
        .hint(kDamaged);
  return tensor;
}

}  // namespace

std::string sha256sums_text(const std::vector<FileDigest>& files) {
  std::string text;
  for (const FileDigest& file : files) {
    bool escaped = false;
    const std::string name = escaped_name(file.path, escaped);
    text += (escaped ? "\\" : "") + to_hex(file.digest) + "  " + name + "\n";
  }
  return text;
}

std::vector<FileDigest> parse_sha256sums(std::string_view text, const fs::path& path) {
  std::vector<FileDigest> files;
  std::set<std::string> names;
  for_each_line(text, [&](std::uint64_t number, std::optional<FileDigest> file) {
    const auto fail = [&](const std::string& what, const char* hint) {
      throw Error(ErrorKind::kBadInput, what).in(path).at_line(number).hint(hint);
    };
    if (!file)
      fail("is not a line of a SHA256SUMS: a SHA-256 of 64 hexadecimal digits, two blanks and a path",
           "give a SHA256SUMS as written by `manifest` or sha256sum, or a reshard.manifest.json");
    if (!stays_inside(file->path))
      fail("the path " + printable(file->path) + " leads out of the directory",
           "list paths relative to the directory that is verified");
    if (!names.insert(file->path).second) fail("the path " + printable(file->path) + " occurs twice", kDamaged);
    files.push_back(std::move(*file));
  });
  return files;
}

SumsList read_sha256sums(std::string_view text, const fs::path& directory) {
  SumsList list;
  for_each_line(text, [&](std::uint64_t number, std::optional<FileDigest> file) {
    if (!file) {
      list.other_lines.push_back(number);
      return;
    }
    const std::string path = (directory / file->path).lexically_normal().string();
    const auto [found, is_new] = list.digests.try_emplace(path, file->digest);
    if (!is_new && found->second != file->digest) found->second = std::nullopt;
  });
  return list;
}

std::string manifest_text(const Manifest& manifest) {
  std::string text = "{\n";
  text += fmt::format("\"{}\": {},\n", kManifest, kVersion);
  text += fmt::format("\"program\": \"reshard\",\n\"version\": {},\n", quoted(manifest.version));
  text += fmt::format("\"command\": {},\n\"layout\": {},\n", quoted(manifest.command), quoted(manifest.layout));
  text += fmt::format("\"mesh\": {{\"tp\": {}, \"pp\": {}, \"ep\": {}}},\n", manifest.tp, manifest.pp, manifest.ep);
  text += "\"options\": {";
  const char* separator = "";
  for (const auto& [name, value] : manifest.options) {
    text += separator + quoted(name) + ": " + option_text(value);
    separator = ", ";
  }
  text += "},\n";
  text += fmt::format("\"fingerprint\": {},\n", quoted(manifest.fingerprint));
  text += fmt::format("\"leaf_bytes\": {},\n", kLeafBytes);
  text += lines("sources", manifest.sources, file_line) + ",\n";
  text += lines("files", manifest.files, file_line) + ",\n";
  text += lines("tensors", manifest.tensors, tensor_line) + "\n}\n";
  return text;
}

Manifest parse_manifest(std::string_view text, const fs::path& path) try {
  const Json json = parse_json(text, path);
  const JsonObject object(json, path);
  if (!object.has(kManifest))
    throw Error(ErrorKind::kBadInput, "is not a manifest of this program")
        .in(path)
        .hint("`manifest` writes a reshard.manifest.json and a SHA256SUMS");
  if (const std::uint64_t version = object.unsigned_at(kManifest); version != kVersion)
    throw Error(ErrorKind::kUnsupported,
                fmt::format("is a manifest of version {}; this program supports {}", version, kVersion))
        .in(path)
        .hint("use the version of this program that wrote it, or recreate it with `manifest`");
  if (const std::uint64_t leaf_bytes = object.unsigned_at("leaf_bytes"); leaf_bytes != kLeafBytes)
    object.fail("leaf_bytes", std::to_string(kLeafBytes));
  Manifest manifest;
  manifest.version = object.string_at("version");
  manifest.command = object.string_at("command");
  manifest.layout = object.string_at("layout");
  const JsonObject mesh = object.object_at("mesh");
  manifest.tp = static_cast<std::uint32_t>(mesh.unsigned_at("tp"));
  manifest.pp = static_cast<std::uint32_t>(mesh.unsigned_at("pp"));
  manifest.ep = static_cast<std::uint32_t>(mesh.unsigned_at("ep"));
  const JsonObject options = object.object_at("options");
  for (const auto& [name, value] : options.items()) manifest.options.emplace(name, option_of(options, name, value));
  manifest.fingerprint = object.string_at("fingerprint");
  manifest.sources = files_at(object, "sources", path);
  manifest.files = files_at(object, "files", path);
  std::set<std::string> names;
  for (const JsonObject& item : object.objects_at("tensors")) {
    manifest.tensors.push_back(tensor_of(item));
    if (!names.insert(manifest.tensors.back().name).second)
      throw Error(ErrorKind::kBadInput, "occurs twice").in(path).tensor(manifest.tensors.back().name).hint(kDamaged);
  }
  return manifest;
} catch (Error& error) {
  if (error.hint().empty()) error.hint(kDamaged);
  throw;
}

}  // namespace reshard
