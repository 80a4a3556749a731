#include "reshard/formats/pickle/pickle.h"

#include <cmath>

#include "support/catch.h"
#include "support/errors.h"

namespace reshard::test {
namespace {

using Kind = PickleKind;

/// A text of raw bytes, NULs and all.
template <std::size_t kSize>
std::string_view raw(const char (&bytes)[kSize]) {
  return {bytes, kSize - 1};
}

using Ints = std::vector<std::int64_t>;
using IntPairs = std::vector<std::pair<std::int64_t, std::int64_t>>;

struct Value {
  explicit Value(std::string_view stream) : text(stream), pickle(read_pickle(text, "f")), node(pickle.root()) {
    CHECK(pickle.size_bytes() == text.size());
  }

  Kind kind() const { return pickle.kind(node); }
  Ints ints() const {
    Ints values;
    for (const PickleRef item : pickle.items(node)) values.push_back(pickle.integer(item));
    return values;
  }
  IntPairs int_pairs(PickleRef of) const {
    IntPairs values;
    for (const auto& [key, value] : pickle.pairs(of)) values.emplace_back(pickle.integer(key), pickle.integer(value));
    return values;
  }

  std::string text;
  Pickle pickle;
  PickleRef node;
};

IntPairs pairs_of(std::string_view stream) {
  const Value value(stream);
  return value.int_pairs(value.node);
}

void check_int(std::string_view stream, std::int64_t expected) {
  const Value value(stream);
  CHECK(value.kind() == Kind::kInt);
  CHECK(value.pickle.integer(value.node) == expected);
}

void check_text(std::string_view stream, Kind kind, std::string_view expected) {
  const Value value(stream);
  CHECK(value.kind() == kind);
  CHECK(value.pickle.text(value.node) == expected);
}

TEST_CASE("Integers of every opcode") {
  check_int(raw("J\xfe\xff\xff\xff."), -2);
  check_int(raw("K\xff."), 255);
  check_int(raw("M\x01\x02."), 513);
  check_int("I-17\n.", -17);
  check_int("L123L\n.", 123);
  check_int("L-9223372036854775808L\n.", INT64_MIN);
  check_int(raw("\x8a\0."), 0);
  check_int(raw("\x8a\1\x80."), -128);
  check_int(raw("\x8a\2\xff\x00."), 255);
  check_int(raw("\x8a\x08\0\0\0\0\0\0\0\x80."), INT64_MIN);
  check_int(raw("\x8a\x09\0\0\0\0\0\0\0\x80\xff."), INT64_MIN);
  check_int(raw("\x8b\2\0\0\0\x34\x12."), 0x1234);
  check_int(raw("\x8a\x0a\5\0\0\0\0\0\0\0\0\0."), 5);  // longer than it need be
}

TEST_CASE("Integers beyond 64 bits keep their text") {
  check_text(raw("\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19."), Kind::kBigInt,
             "\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19");
  check_text("L119547037146038801333356L\n.", Kind::kBigInt, "119547037146038801333356");
  check_text("I9223372036854775808\n.", Kind::kBigInt, "9223372036854775808");
  check_text(raw("\x8a\x09\0\0\0\0\0\0\0\x80\0."), Kind::kBigInt, raw("\0\0\0\0\0\0\0\x80\0"));
}

TEST_CASE("None, bools and floats") {
  CHECK(Value("N.").kind() == Kind::kNone);
  for (const char* stream : {"\x88.", "I01\n."}) {
    const Value value(stream);
    CHECK(value.kind() == Kind::kBool);
    CHECK(value.pickle.integer(value.node) == 1);
  }
  CHECK(Value("I00\n.").kind() == Kind::kBool);
  for (const std::string_view stream : {raw("G\x40\x09\x21\xfb\x54\x44\x2d\x18."), raw("F3.141592653589793\n.")}) {
    const Value value(stream);
    CHECK(value.kind() == Kind::kFloat);
    CHECK(value.pickle.real(value.node) == 3.141592653589793);
  }
  const Value infinite("F-inf\n.");
  CHECK(std::isinf(infinite.pickle.real(infinite.node)));
}

TEST_CASE("Strings and bytes of every opcode") {
  check_text(raw("X\3\0\0\0abc."), Kind::kString, "abc");
  check_text(raw("\x8c\3abc."), Kind::kString, "abc");
  check_text(raw("\x8d\3\0\0\0\0\0\0\0abc."), Kind::kString, "abc");
  check_text(raw("T\3\0\0\0abc."), Kind::kString, "abc");
  check_text(raw("U\3a\0c."), Kind::kString, raw("a\0c"));
  check_text(raw("B\3\0\0\0abc."), Kind::kBytes, "abc");
  check_text(raw("C\3abc."), Kind::kBytes, "abc");
  check_text(raw("\x8e\3\0\0\0\0\0\0\0abc."), Kind::kBytes, "abc");
  check_text(raw("\x96\3\0\0\0\0\0\0\0abc."), Kind::kBytes, "abc");
  check_text("S'a\\n\\x41\\'\\101\\\\\\q\"'\n.", Kind::kString, "a\nA'A\\\\q\"");
  check_text("S\"it's\"\n.", Kind::kString, "it's");
  check_text("Vab\\u00fc\\U0001F600\xfc\\n\n.", Kind::kString, "ab\u00fc\U0001F600\u00fc\\n");
  check_text("V\\u007f\\u0080\\u07ff\\u0800\\uffff\\U00010000\\U0010ffff\n.", Kind::kString,
             "\x7f\u0080\u07ff\u0800\uffff\U00010000\U0010ffff");
}

TEST_CASE("Tuples, lists, dicts and sets") {
  CHECK(Value(").").ints().empty());
  CHECK(Value(raw("K\1\x85.")).ints() == Ints{1});
  CHECK(Value(raw("K\1K\2\x86.")).ints() == Ints{1, 2});
  CHECK(Value(raw("K\1K\2K\3\x87.")).ints() == Ints{1, 2, 3});
  CHECK(Value(raw("(K\1K\2K\3K\4t.")).ints() == Ints{1, 2, 3, 4});
  CHECK(Value(raw("]K\1a(K\2K\3e.")).ints() == Ints{1, 2, 3});
  CHECK(Value(raw("(K\1K\2l.")).ints() == Ints{1, 2});
  CHECK(Value(raw("\x8f(K\1K\2\x90.")).ints() == Ints{1, 2});
  CHECK(Value(raw("(K\1K\2\x91.")).kind() == Kind::kSet);
  CHECK(pairs_of(raw("}K\3K\4s(K\1K\2K\5K\6u.")) == IntPairs{{3, 4}, {1, 2}, {5, 6}});
  CHECK(pairs_of(raw("(K\1K\2d.")) == IntPairs{{1, 2}});
  CHECK(pairs_of(raw("}K\1K\2sK\1K\3s.")) == IntPairs{{1, 2}, {1, 3}});
}

TEST_CASE("A dict that is set in two goes has all its pairs, whatever other dict was set in between") {
  const Value value(raw("}q\0(K\1K\2K\3K\4u}K\5K\6sh\0K\7K\x08s\x87."));
  const auto items = value.pickle.items(value.node);
  REQUIRE(items.size() == 3);
  CHECK(items[0] == items[2]);
  CHECK(value.int_pairs(items[0]) == IntPairs{{1, 2}, {3, 4}, {7, 8}});
  CHECK(value.int_pairs(items[1]) == IntPairs{{5, 6}});
  for (const PickleRef item : items) CHECK(value.pickle.items(item).empty());
}

TEST_CASE("Numbers, None and empty tuples that are equal are one node, whose value stays its own") {
  std::string stream = "(";
  std::vector<std::int64_t> expected;
  for (int i = 0; i < 3000; ++i) {
    const std::int64_t value = (i * 37) % 300 - 100;
    expected.push_back(value);
    stream += "I" + std::to_string(value) + "\n";
  }
  const Value value(stream + "t.");
  CHECK(value.ints() == expected);
  CHECK(value.pickle.num_nodes() < 3001);
  CHECK(Value("NN))\x86\x87.").pickle.num_nodes() == 4);
  CHECK(Value(raw("K\1I01\n\x86.")).pickle.num_nodes() == 3);  // True is no 1
}

TEST_CASE("The memo gives back what was put into it") {
  CHECK(Value(raw("K\7q\0h\0\x86.")).ints() == Ints{7, 7});
  CHECK(Value(raw("K\7r\1\0\0\0j\1\0\0\0\x86.")).ints() == Ints{7, 7});
  CHECK(Value(raw("K\7p1\ng1\n\x86.")).ints() == Ints{7, 7});
  CHECK(Value(raw("K\7\x94K\x08\x94h\0h\1\x86\x87.")).ints().size() == 3);
  const Value cycle(raw("]q\0h\0a."));
  CHECK(cycle.pickle.items(cycle.node)[0] == cycle.node);
}

TEST_CASE("POP, POP_MARK and DUP") {
  CHECK(Value(raw("K\1K\2"
                  "0\x85."))
            .ints() == Ints{1});
  CHECK(Value(raw("K\1(K\2K\3"
                  "1\x85."))
            .ints() == Ints{1});
  CHECK(Value(raw("K\1(0\x85.")).ints() == Ints{1});
  CHECK(Value(raw("K\1"
                  "2\x86."))
            .ints() == Ints{1, 1});
}

TEST_CASE("Objects say what would be called with what") {
  const std::vector<std::string_view> makers{
      raw("cpkg.a\nThing\nK\1K\2\x86R}K\3K\4sb."),             // REDUCE
      raw("cpkg.a\nThing\nK\1K\2\x86\x81}K\3K\4sb."),          // NEWOBJ
      raw("cpkg.a\nThing\nK\1K\2\x86}\x92}K\3K\4sb."),         // NEWOBJ_EX
      raw("(K\1K\2ipkg.a\nThing\n}K\3K\4sb."),                 // INST
      raw("(cpkg.a\nThing\nK\1K\2o}K\3K\4sb."),                // OBJ
      raw("\x8c\5pkg.a\x8c\5Thing\x93K\1K\2\x86R}K\3K\4sb."),  // STACK_GLOBAL
  };
  for (const std::string_view stream : makers) {
    INFO(stream);
    const Value value(stream);
    const Pickle& pickle = value.pickle;
    REQUIRE(value.kind() == Kind::kObject);
    CHECK(pickle.is_object_of(value.node, "pkg.a", "Thing"));
    CHECK(pickle.class_name(value.node) == "pkg.a.Thing");
    REQUIRE(pickle.items(pickle.args(value.node)).size() == 2);
    CHECK(pickle.integer(pickle.items(pickle.args(value.node))[1]) == 2);
    REQUIRE(pickle.state(value.node) != kNoNode);
    CHECK(pickle.pairs(pickle.state(value.node)).size() == 1);
    REQUIRE(pickle.unknown_objects().size() == 1);
    CHECK(pickle.unknown_objects()[0].node == value.node);
    CHECK(pickle.class_name(pickle.unknown_objects()[0].of) == "pkg.a.Thing");
  }
  const Value filled(raw("ccollections\nOrderedDict\n)RK\1K\2s(K\3K\4uK\5a."));
  CHECK(filled.int_pairs(filled.node).size() == 2);
  CHECK(filled.ints() == Ints{5});
  CHECK(filled.pickle.unknown_objects().empty());
}

TEST_CASE("Persistent ids keep what names them") {
  const Value binary(raw("K\1K\2\x86Q."));
  CHECK(binary.kind() == Kind::kPersistentId);
  CHECK(binary.pickle.items(binary.pickle.args(binary.node)).size() == 2);
  const Value line("Pname\n.");
  CHECK(line.pickle.text(line.pickle.args(line.node)) == "name");
}

TEST_CASE("Modules that moved in Python 3 have their new names") {
  const Value set(raw("c__builtin__\nset\n)R."));
  CHECK(set.pickle.class_name(set.node) == "builtins.set");
  const Value object(raw("ccopy_reg\n_reconstructor\n(cpkg\nThing\nc__builtin__\nobject\nNtR."));
  CHECK(object.pickle.class_name(object.node) == "copyreg._reconstructor");
  REQUIRE(object.pickle.unknown_objects().size() == 1);
  CHECK(object.pickle.class_name(object.pickle.unknown_objects()[0].of) == "pkg.Thing");
}

TEST_CASE("A pickle ends at its STOP, whatever follows") {
  const Pickle pickle = read_pickle(raw("\x80\5\x95\2\0\0\0\0\0\0\0K\1.K\2."), "f");
  CHECK(pickle.size_bytes() == 14);
  CHECK(pickle.integer(pickle.root()) == 1);
}

TEST_CASE("Asking a node for what it does not have gives nothing") {
  const Value value(raw("K\1."));
  CHECK(value.pickle.items(value.node).empty());
  CHECK(value.pickle.pairs(value.node).empty());
  CHECK(value.pickle.text(value.node).empty());
  CHECK(value.pickle.callee(value.node) == kNoNode);
  CHECK(value.pickle.global(value.node).name.empty());
  CHECK(value.pickle.class_name(value.node).empty());
  CHECK(value.pickle.real(value.node) == 0);
  const Value real("F1.5\n.");
  CHECK(real.pickle.integer(real.node) == 0);
  const Value pair("ca\nB\ncc\nD\n\x86.");
  for (const PickleRef global : pair.pickle.items(pair.node)) CHECK(pair.pickle.integer(global) == 0);
}

}  // namespace
}  // namespace reshard::test
