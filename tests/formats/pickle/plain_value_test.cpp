#include "reshard/formats/pickle/plain_value.h"

#include <cmath>

#include "reshard/formats/torch/torch_file.h"
#include "reshard/io/memory_files.h"
#include "support/pickles.h"
#include "support/refusals.h"

namespace reshard::test {
namespace {

PlainValue read_value(const std::string& value) {
  const std::string text = pickles::stream(value);
  const Pickle pickle = read_pickle(text, "f.pt");
  return read_plain_value(pickle, pickle.root(), "lr of parameter group 0", "f.pt");
}

/// All kinds, one in another.
PlainValue all_kinds() {
  PlainValue::List list{{0.9}, {std::int64_t{-7}}, {std::int64_t{1} << 40}, {INT64_MIN}, {std::string("ü")}, {}};
  return {PlainValue::Dict{{"lr", {0.1}},
                           {"betas", {std::move(list)}},
                           {"fused", {}},
                           {"amsgrad", {false}},
                           {"maximize", {true}},
                           {"none", {PlainValue::List{}}},
                           {"nothing", {PlainValue::Dict{}}}}};
}

TEST_CASE("a plain value is read from the pickle that it was put into") {
  Pickler pickler;
  put_plain_value(pickler, all_kinds());
  const std::string text = pickler.finish();
  const Pickle pickle = read_pickle(text, "f.pt");
  CHECK(read_plain_value(pickle, pickle.root(), "all", "f.pt") == all_kinds());
}

TEST_CASE("the file of a plain value is one of torch.save") {
  MemoryFiles files;
  files.write("lr.pt", plain_value_file("archive", {0.25}));
  const TorchFile file = read_torch_file(*files.open("lr.pt"), "lr.pt");
  CHECK(read_plain_value(file.pickle(), file.pickle().root(), "lr", "lr.pt") == PlainValue{0.25});
}

TEST_CASE("a tuple is read as the list that it becomes on a device's way to the host") {
  CHECK(read_value(pickles::numbers({1, 2})) == read_value(pickles::list({pickles::number(1), "K\x02"})));
}

TEST_CASE("a set is read as a list, from protocol 4 and, where Python calls its class, from protocol 2") {
  const PlainValue list = read_value(pickles::list({"K\x01", "K\x02"}));
  CHECK(read_value("(K\x01K\x02\x91") == list);
  CHECK(read_value("c__builtin__\nset\n(K\x01K\x02l\x85R") == list);
  CHECK(read_value("cbuiltins\nset\n)R") == PlainValue{PlainValue::List{}});
}

TEST_CASE("an object in the place of a plain value is refused by its class and place") {
  check_refused(
      [] { read_value(pickles::list({pickles::object("a", "B", "}")})); },
      {.kind = ErrorKind::kUnsupported, .path = "f.pt", .says = "lr of parameter group 0 is an object of a.B"});
}

TEST_CASE("plain values lie in lists 16 deep and no deeper, and are 100,000 and no more") {
  const auto nested = [](std::size_t lists) { return std::string(lists, ']') + "N" + std::string(lists, 'a'); };
  CHECK(num_values(read_value(nested(16))) == 17);
  check_refused([&] { read_value(nested(17)); },
                {.kind = ErrorKind::kUnsupported, .says = "more values than any hyperparameter"});
  const auto many = [](std::size_t values) { return "](" + std::string(values - 1, 'N') + "e"; };
  CHECK(num_values(read_value(many(kMaxPlainValues))) == kMaxPlainValues);
  check_refused([&] { read_value(many(kMaxPlainValues + 1)); },
                {.kind = ErrorKind::kUnsupported, .says = "more values than any hyperparameter"});
}

TEST_CASE("plain values are printed as Python prints them") {
  CHECK(reshard::to_string(read_value(pickles::list({"N", "\x88", "K\x07", "G?\xd0" + std::string(6, '\0')}))) ==
        "[None, True, 7, 0.25]");
  CHECK(reshard::to_string(PlainValue{1.0}) == "1.0");
  CHECK(reshard::to_string(PlainValue{-0.0}) == "-0.0");
  CHECK(reshard::to_string(PlainValue{1e-8}) == "1e-08");
  CHECK(reshard::to_string(PlainValue{std::nan("")}) == "nan");
}

TEST_CASE("plain values are equal if their types and values are, and a NaN is equal to any other") {
  CHECK(PlainValue{1.0} == PlainValue{1.0});
  CHECK_FALSE(PlainValue{1.0} == PlainValue{std::int64_t{1}});
  CHECK_FALSE(PlainValue{true} == PlainValue{std::int64_t{1}});
  const PlainValue nan{PlainValue::List{{std::nan("")}}};
  CHECK(nan == PlainValue{PlainValue::List{{-std::nan("")}}});
  CHECK_FALSE(nan == PlainValue{PlainValue::List{{0.0}}});
}

TEST_CASE("the number of plain values counts those inside") {
  CHECK(num_values({}) == 1);
  CHECK(num_values(all_kinds()) == 14);
}

}  // namespace
}  // namespace reshard::test
