// Pickles that attack, and what is left of a good one after a cut or a patch.

#include <fmt/format.h>

#include <chrono>

#include "reshard/formats/pickle/pickle.h"
#include "support/refusals.h"

namespace reshard::test {
namespace {

template <std::size_t kSize>
std::string raw(const char (&bytes)[kSize]) {
  return {bytes, kSize - 1};
}

constexpr std::uint64_t kOffset = 1000;

struct Case {
  const char* name;
  std::string stream;
  std::uint64_t at;  // of the opcode in the stream
  std::string says;
  ErrorKind kind = ErrorKind::kBadInput;
};

void check_cases(const std::vector<Case>& cases) {
  for (const Case& it : cases) {
    DYNAMIC_SECTION(it.name) {
      check_refused([&] { read_pickle(it.stream, "d/f.pt", kOffset); },
                    {.kind = it.kind, .path = "d/f.pt", .says = it.says, .offset_bytes = kOffset + it.at});
    }
  }
}

std::string repeat(const std::string& part, std::size_t times) {
  std::string text;
  for (std::size_t i = 0; i < times; ++i) text += part;
  return text;
}

TEST_CASE("Streams that no pickler writes are refused at the opcode") {
  check_cases({
      {"empty", "", 0, "ends before it is complete"},
      {"no STOP", raw("K\1"), 2, "ends before it is complete"},
      {"only STOP", ".", 0, "empty stack"},
      {"something left at STOP", raw("K\1K\2."), 4, "left on its stack"},
      {"a MARK left at STOP", raw("(K\1."), 3, "left on its stack"},
      {"a MARK below the value at STOP", raw("K\1(."), 3, "empty stack"},
      {"TUPLE without MARK", raw("K\1t."), 2, "MARK that does not exist"},
      {"APPENDS without MARK", "]e.", 1, "MARK that does not exist"},
      {"TUPLE2 of one", raw("K\1\x86."), 2, "empty stack"},
      {"TUPLE1 below a MARK", raw("K\1(\x85."), 3, "empty stack"},
      {"POP of nothing", "0.", 0, "empty stack"},
      {"DUP of nothing", "2.", 0, "empty stack"},
      {"APPEND to nothing", raw("K\1a."), 2, "empty stack"},
      {"APPEND to an int", raw("K\1K\2a."), 4, "appends to an int"},
      {"APPENDS to a dict", raw("}(K\2e."), 4, "appends to a dict"},
      {"ADDITEMS to a list", raw("](K\2\x90."), 4, "appends to a list"},
      {"SETITEM of a list", raw("]K\1K\2s."), 5, "sets items of a list"},
      {"SETITEMS of an odd number", raw("}(K\1u."), 4, "a key without a value"},
      {"DICT of an odd number", raw("(K\1d."), 3, "a key without a value"},
      {"BINGET of nothing", raw("h\0."), 0, "reads memo 0"},
      {"LONG_BINGET far away", raw("K\1q\0j\xff\xff\xff\xff."), 4, "reads memo 4294967295"},
      {"GET of no number", "gx\n.", 0, "not a number"},
      {"PUT of nothing", raw("q\0."), 0, "empty stack"},
      {"LONG_BINPUT far away", raw("K\1r\xff\xff\xff\xff."), 2, "numbers its memo 4294967295"},
      {"PUT of 2^64", "Np18446744073709551616\n.", 1, "not a number"},
      {"an unknown opcode", raw("K\1\xff."), 2, "byte 255"},
      {"a NUL", raw("\0."), 0, "byte 0"},
      {"a protocol to come", raw("\x80\6N."), 0, "protocol 6", ErrorKind::kUnsupported},
      {"EXT1", raw("\x82\1."), 0, "extension codes", ErrorKind::kUnsupported},
      {"NEXT_BUFFER", raw("\x97."), 0, "buffers outside", ErrorKind::kUnsupported},
      {"a string of 4 GB",
       raw("X\xff\xff\xff\xff"
           "abc."),
       0, "ends before it is complete"},
      {"a string of 2^64 - 1 bytes",
       raw("\x8d\xff\xff\xff\xff\xff\xff\xff\xff"
           "abc."),
       0, "ends before it is complete"},
      {"a LONG4 of negative length",
       raw("\x8b\xff\xff\xff\xff"
           "abc."),
       0, "ends before it is complete"},
      {"a line without end", "I12", 0, "ends before it is complete"},
      {"INT of no number", "I1x\n.", 0, "not a number"},
      {"INT of nothing", "I\n.", 0, "not a number"},
      {"LONG of no number", "LL\n.", 0, "not a number"},
      {"FLOAT of no number", "F1.5.\n.", 0, "not a number"},
      {"STRING without quotes", "Sabc\n.", 0, "quotes or escapes"},
      {"STRING of half an escape", "S'\\x4'\n.", 0, "quotes or escapes"},
      {"UNICODE of half an escape", "V\\u00f\n.", 0, "quotes or escapes"},
      {"UNICODE beyond its end", "V\\U00110000\n.", 0, "quotes or escapes"},
      {"STACK_GLOBAL of an int", raw("K\1K\2\x93."), 4, "not a string"},
      {"a global of a long name", "c" + std::string(257, 'a') + "\nB\n.", 0, "a name of 257 bytes"},
      {"REDUCE of a string", raw("X\1\0\0\0a)R."), 7, "calls a string"},
      {"REDUCE of what a call made", raw("cpkg\nA\n)R)R."), 10, "calls an object of pkg.A"},
      {"REDUCE without arguments", raw("cpkg\nA\nNR."), 8, "None instead of arguments"},
      {"OBJ of nothing", "(o.", 1, "without a class"},
      {"BUILD of a dict", "}}b.", 2, "attributes of a dict"},
      {"BUILD of a class", "cpkg\nA\n}b.", 8, "attributes of the class pkg.A"},
      {"BUILD twice", "cpkg\nA\n)R}b}b.", 12, "twice"},
  });
}

TEST_CASE("What runs code when Python loads it is refused by its name") {
  const std::string args = raw("X\2\0\0\0id\x85R.");
  check_cases({
      {"os.system", "cos\nsystem\n" + args, 0,
       "names os.system, which runs code: loading this file in Python would run it"},
      {"posix.system", "cposix\nsystem\n" + args, 0, "posix.system"},
      {"eval", "c__builtin__\neval\n" + args, 0, "builtins.eval"},
      {"exec by STACK_GLOBAL",
       raw("\x8c\x08"
           "builtins\x8c\4exec\x93") +
           args,
       16, "builtins.exec"},
      {"getattr", "cbuiltins\ngetattr\n" + args, 26, "builtins.getattr"},
      {"__import__", "cbuiltins\n__import__\n" + args, 0, "builtins.__import__"},
      {"subprocess.Popen", "csubprocess\nPopen\n" + args, 26, "subprocess.Popen"},
      {"Popen by NEWOBJ", "csubprocess\nPopen\n)\x81.", 19, "subprocess.Popen"},
      {"Popen by INST", "(isubprocess\nPopen\n.", 1, "subprocess.Popen"},
      {"Popen by OBJ", "(csubprocess\nPopen\no.", 19, "subprocess.Popen"},
      {"through what a module imports", "ctorch.serialization\nos.system\n" + args, 0, "torch.serialization.os.system"},
      {"a class through it", raw("\x8c\5torch\x8c\x10subprocess.Popen\x93") + args, 34, "torch.subprocess.Popen"},
      {"copyreg of it", "ccopy_reg\n_reconstructor\n(csubprocess\nPopen\nc__builtin__\nobject\nNtR.", 66,
       "subprocess.Popen"},
      {"runpy", "crunpy\n_run_code\n" + args, 0, "runpy._run_code"},
      {"functools.partial", "cfunctools\npartial\n" + args, 0, "functools.partial"},
      {"a function that nobody knows", "cwhatever.pkg\nload\n" + args, 27, "whatever.pkg.load"},
      {"a hidden function", "cwhatever\n_make\n" + args, 24, "whatever._make"},
      {"signal.raise_signal", "csignal\nraise_signal\n" + args, 29, "signal.raise_signal"},
      {"a class that writes a file", "cio\nFileIO\n" + args, 19, "io.FileIO"},
      {"a class that connects", "cftplib\nFTP\n" + args, 20, "ftplib.FTP"},
      {"torch.hub.load", "ctorch.hub\nload\n" + args, 0, "torch.hub.load"},
      {"torch.storage._load_from_bytes", "ctorch.storage\n_load_from_bytes\n" + args, 40, "_load_from_bytes"},
      {"a class with a lowercase name and arguments", "cnumpy\nmemmap\n" + args.substr(0, args.size() - 1) + "\x81.",
       22, "numpy.memmap"},
      {"the same with keywords", raw("cpkg\nmake\n)}X\1\0\0\0aK\1s\x92."), 21, "pkg.make"},
      {"a function that is only named", raw("}X\1\0\0\0fcposix\nsystem\ns."), 7, "names posix.system"},
      {"a base that is built", raw("ccopy_reg\n_reconstructor\n(cpkg\nThing\ncshelve\nDbfilenameShelf\nX\1\0\0\0xtR."),
       68, "calls shelve.DbfilenameShelf"},
      {"a pool of processes", "ctorch.multiprocessing.pool\nPool\n" + args, 41, "torch.multiprocessing.pool.Pool"},
      {"a name with control characters", "cx\n\x1b[31mred\n" + args, 20, "x.\\x1b[31mred"},
      {"no name", "cx\n\n" + args, 12, "calls x."},
  });
  check_refused([&] { read_pickle("cos\nsystem\n)R.", "f"); }, {.hint = "weights_only=False"});
}

void refuse_pickle(const std::string& stream, const std::string& says) {
  CAPTURE(stream);
  check_refused([&] { read_pickle(stream, "f"); }, {.says = says});
}

TEST_CASE("What a known function is given to call is judged as if it were called") {
  const std::string from_type = "ctorch._tensor\n_rebuild_from_type_v2\n";
  const std::string id = raw("X\2\0\0\0id");
  refuse_pickle(from_type + "(cpkg\nrun\nctorch\nTensor\n" + id + "\x85NtR.", "calls pkg.run");
  refuse_pickle(from_type + "(" + from_type + "ctorch\nTensor\n(cpkg\nrun\nN" + id + "\x85NtNtR.", "calls pkg.run");
  // The inner call gets the third argument, whatever tuples follow.
  refuse_pickle(from_type + "(" + from_type + "ctorch\nTensor\n(cpkg\nrun\nN" + id + "\x85Nt" + id + "\x85tR.",
                "calls pkg.run");
  refuse_pickle(from_type + "(cpkg\nMake\n)Rctorch\nTensor\n)NtR.", "calls an object of pkg.Make");
  refuse_pickle("cnumpy.random._pickle\n__randomstate_ctor\n" + id + "cpkg\nrun\n\x86R.", "calls pkg.run");
  refuse_pickle("cnumpy.random._pickle\n__generator_ctor\n" + id + "cpkg\nrun\n\x86R.", "calls pkg.run");
  refuse_pickle("cnumpy.random._pickle\n__bit_generator_ctor\ncsubprocess\nPopen\n\x85R.", "calls subprocess.Popen");
  refuse_pickle(from_type + "(cpkg\nMake\nctorch\nTensor\n)NNtR.", "with too many arguments");
  std::string circle = from_type + "q\1";
  circle += raw("(h\1h\1(h\1h\1(h\1h\1(h\1h\1)NtNtNtNtR.");
  refuse_pickle(circle, "calls nested more deeply");
  const std::string good = "cnumpy.random._pickle\n__randomstate_ctor\n" + raw("X\7\0\0\0MT19937") +
                           "cnumpy.random._pickle\n__bit_generator_ctor\n\x86R.";
  CHECK(read_pickle(good, "f").unknown_objects().empty());
  const std::string without = from_type + ")R.";
  CHECK(read_pickle(without, "f").unknown_objects().empty());
}

TEST_CASE("Objects of unknown classes that are only built are data, and so are calls of classes with values") {
  for (const char* stream : {
           "ctorch.distributed._mesh_layout\n_LayoutToCome\n)\x81}b.",  // NEWOBJ
           "cpkg\nlowercase\n)\x81}b.",                                 // without arguments: nothing to act on
           "cpkg\n_hidden\n)}\x92.",                                    // NEWOBJ_EX
           "ccopy_reg\n_reconstructor\n(cpkg\n_hidden\nc__builtin__\nobject\nNtR.",  // the same in protocol 0
           "csignal\nSignals\nK\x0f\x85R.",                                          // an enum
           "cpkg\n_Settings\nK\x0f\x85R.",
       }) {
    CAPTURE(stream);
    CHECK(read_pickle(stream, "f").unknown_objects().size() == 1);
  }
  const std::string nested = raw("c__builtin__\ngetattr\ncpkg\nOuter\nX\5\0\0\0Inner\x86RK\1\x85R.");
  const Pickle pickle = read_pickle(nested, "f");
  REQUIRE(pickle.unknown_objects().size() == 1);
  CHECK(pickle.class_name(pickle.unknown_objects()[0].of) == "pkg.Outer.Inner");
  const std::string lower = raw("c__builtin__\ngetattr\ncpkg\nOuter\nX\5\0\0\0inner\x86RK\1\x85R.");
  refuse_pickle(lower, "calls pkg.Outer.inner: loading this file in Python would run it");
  const std::string built = raw("csubprocess\n_execute\n)\x81.");
  refuse_pickle(built, "names subprocess._execute");
  // Arguments and keywords that a call makes are arguments, too.
  const std::string keywords =
      raw("cpkg\nmake\n)c__builtin__\ndict\n]X\1\0\0\0aK\1\x86"
          "a\x85R\x92.");
  refuse_pickle(keywords, "calls pkg.make");
  const std::string arguments = lower.substr(0, lower.size() - 5) + "]K\1a\x81.";
  refuse_pickle(arguments, "calls a function with a list instead of arguments");
  // A class that getattr reads must stay as it is.
  for (const char* change : {"}b.", "]a.", "NNs."})
    refuse_pickle(nested.substr(0, nested.size() - 5) + change, "an object of pkg.Outer.Inner");
}

TEST_CASE("A member of an enum read by getattr is data, and nothing else that getattr reads is") {
  const auto getattr = [](const std::string& owner, const std::string& name) {
    return "c__builtin__\ngetattr\n" + owner + "X" + static_cast<char>(name.size()) + raw("\0\0\0") + name + "\x86R";
  };
  for (const char* owner : {"ctorch.metadata\nMEM_FORMAT\n",
                            "ctorch.distributed.checkpoint.metadata\n_MEM_FORMAT_ENCODING\n", "cpkg\nOuter.Inner\n"}) {
    const std::string stream = getattr(owner, "MEMBER") + ".";
    const Pickle pickle = read_pickle(stream, "f");
    CHECK(pickle.is_object_of(pickle.root(), "builtins", "getattr"));
    CHECK(pickle.text(pickle.items(pickle.args(pickle.root()))[1]) == "MEMBER");
  }
  const std::string owner = "cpkg\nEnum\n";
  for (const std::string& stream :
       {getattr("csubprocess\nPopen\n", "A"), getattr("cpkg\nmake\n", "A"),
        getattr("ctorch.serialization\n_get_layout\n", "A"), getattr("cpkg\n_\n", "A"), getattr(owner, "__init__"),
        getattr("X" + raw("\1\0\0\0a"), "A"), getattr(owner + ")R", "A"),
        "c__builtin__\ngetattr\n" + owner + raw("K\1\x86R"), "c__builtin__\ngetattr\n" + owner + "\x85R"})
    refuse_pickle(stream + ".", "calls builtins.getattr");
  refuse_pickle(getattr(owner, "a") + ")R.", "calls pkg.Enum.a");

  // A class inside of another, as protocols before 4 name it.
  const std::string outer = "ctorch.distributed._shard.sharded_tensor.api\nShardedTensor\n";
  const std::string nested = getattr(outer, "ProcessGroupState") + ")\x81.";
  CHECK_NOTHROW(read_pickle(nested, "f"));
  const std::string other = getattr(outer, "Other") + ")\x81.";
  CHECK(read_pickle(other, "f").unknown_objects().size() == 1);
  refuse_pickle(getattr(outer, std::string(127, 'A')) + ")R)R.", "calls an object of");
}

TEST_CASE("What is only named, and never called, runs nothing, but functions that run code are not even named") {
  for (const auto& [module, name] :
       {std::pair("subprocess", "Popen"), std::pair("torch._C._nn", "gelu"), std::pair("inspect", "_empty")}) {
    const std::string stream = fmt::format("c{}\n{}\n.", module, name);
    const Pickle pickle = read_pickle(stream, "f");
    CHECK(pickle.class_name(pickle.root()) == fmt::format("{}.{}", module, name));
  }
  const std::string longest = "c" + std::string(256, 'a') + "\nsystem\n.";
  CHECK(read_pickle(longest, "f").num_nodes() == 1);
  refuse_pickle("cos\nsystem\n.", "names os.system, which runs code");
  refuse_pickle("c__builtin__\ngetattr\ncos\nsystem\n.", "names os.system");
}

TEST_CASE("Deep nesting ends without using up the stack") {
  constexpr std::size_t kDeep = 200'000;
  CHECK(error_of([&] { read_pickle(repeat("(", kDeep), "f"); }).kind() == ErrorKind::kBadInput);
  const std::string tuples = repeat("(", kDeep) + repeat("t", kDeep) + ".";
  const Pickle nested = read_pickle(tuples, "f");
  CHECK(nested.num_nodes() == kDeep);
  const std::string chain = "N" + repeat("\x85", kDeep) + ".";
  CHECK(read_pickle(chain, "f").num_nodes() == kDeep + 1);
  const std::string lists = repeat("]", kDeep) + repeat("a", kDeep - 1) + ".";
  CHECK(read_pickle(lists, "f").num_nodes() == kDeep);
}

TEST_CASE("A tuple of twice itself, a thousand times over, takes a node each time") {
  std::string stream = "N";
  for (int i = 0; i < 1000; ++i) stream += "2\x86";
  stream += ".";
  CHECK(read_pickle(stream, "f").num_nodes() == 1001);
}

TEST_CASE("More objects or links than any checkpoint has are refused") {
  constexpr std::size_t kMostOnStack = std::size_t{1} << 22;
  const std::string discarded = "(" + std::string(kMostOnStack, ']') + "1";
  const std::string tuple = "(N" + std::string(kMostOnStack - 1, '2') + "t0";
  const auto refuse = [](const std::string& stream, const char* says) {
    check_refused([&] { read_pickle(stream, "f"); }, {.kind = ErrorKind::kUnsupported, .says = says});
  };
  refuse(repeat(discarded, 12) + "].", "more than 50331648 objects");
  refuse("N" + std::string(kMostOnStack, '2') + ".", "");
  refuse(std::string(kMostOnStack + 1, '('), "");
  refuse(repeat(tuple, 20) + "N\x85.", "links its objects more than 83886080 times");
}

TEST_CASE("A long chain of memos is linear in time") {
  std::string stream = "]";
  for (std::uint32_t i = 0; i < 300'000; ++i) {
    stream += "r";
    for (int byte = 0; byte < 4; ++byte) stream += static_cast<char>(i >> 8 * byte);
  }
  stream += ".";
  const auto begin = std::chrono::steady_clock::now();
  CHECK(read_pickle(stream, "f").num_nodes() == 1);
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(5));
}

const std::string kState =
    raw("\x80\2}q\0(X\1\0\0\0aq\1ctorch._utils\n_rebuild_tensor_v2\nq\2(("
        "X\7\0\0\0storageq\3ctorch\nFloatStorage\nq\4X\1\0\0"
        "\0"
        "0q\5X\3\0\0\0cpuq\6K\6tq\7QK\0K\2K\3\x86q\x08K\3K\1\x86q\x09\x89"
        "ccollections\nOrderedDict\nq\x0a)Rq\x0btq\x0cRq\x0dX\1\0\0\0bq\x0eG\x3f\xf0\0\0\0\0\0\0u.");

TEST_CASE("A pickle cut off at any byte is refused as cut off") {
  CHECK(read_pickle(kState, "f").size_bytes() == kState.size());
  for (std::size_t size = 0; size < kState.size(); ++size)
    CHECK_THROWS_AS(read_pickle(kState.substr(0, size), "f"), PickleCutOff);
}

TEST_CASE("No patch of one byte of a pickle escapes its errors") {
  std::string bytes;
  for (int byte = 0; byte < 256; ++byte) bytes += static_cast<char>(byte);
  const std::size_t refusals = check_byte_patches(kState, bytes, [](const std::string& stream) {
    try {
      read_pickle(stream, "f");
    } catch (const Error& error) {
      CHECK(error.offset_bytes().has_value());
      throw;
    }
  });
  CHECK(refusals > 10'000);
}

}  // namespace
}  // namespace reshard::test
