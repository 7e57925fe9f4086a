#include <gmock/gmock.h>

#include <cmath>

#include <stormo/checkpoint/pytorch/pickle.h>
#include <stormo/checkpoint/pytorch/pickle_writer.h>

namespace stormo::checkpoint {
namespace {

using namespace std::string_literals;
using testing::HasSubstr;
using Kind = PickleValue::Kind;

std::string fault_of(const std::string& bytes) { return Pickle::parse(bytes).status().message(); }

// pickle.dumps([-1, 300, 2**40, 1.5, "é", None, True, (), (1,), {"k": [0]}], protocol=2), and
// protocol 4 of the same: written by Python 3.11.
const std::string kProtocol2 =
    "\x80\x02]q\x00(J\xff\xff\xff\xffM,\x01\x8a\x06\x00\x00\x00\x00\x00\x01G?"
    "\xf8\x00\x00\x00\x00\x00"
    "\x00X\x02\x00\x00\x00\xc3\xa9q\x01N\x88)K\x01\x85q\x02}q\x03X\x01\x00\x00\x00kq\x04]q\x05K\x00"
    "ase."s;
const std::string kProtocol4 =
    "\x80\x04\x95"
    "6\x00\x00\x00\x00\x00\x00\x00]\x94(J\xff\xff\xff\xffM,\x01\x8a\x06\x00\x00\x00\x00"
    "\x00\x01G?\xf8\x00\x00\x00\x00\x00\x00\x8c\x02\xc3\xa9\x94N\x88)K\x01\x85\x94}"
    "\x94\x8c\x01k\x94]"
    "\x94K\x00"
    "ase."s;

TEST(PickleTest, ReadsWhatPythonWrites) {
  for (const std::string& bytes : {kProtocol2, kProtocol4}) {
    const Pickle p = Pickle::parse(bytes).take_or_throw();
    const auto item = [&](std::size_t i) -> const PickleValue& { return *p.item(p.root(), i); };
    ASSERT_EQ(p.root().items.size(), 10u);
    EXPECT_EQ(item(0).integer, -1);
    EXPECT_EQ(item(1).integer, 300);
    EXPECT_EQ(item(2).integer, std::int64_t{1} << 40);
    EXPECT_EQ(item(3).real, 1.5);
    EXPECT_EQ(item(4).text, "\xc3\xa9");
    EXPECT_EQ(item(5).kind, Kind::kNone);
    EXPECT_EQ(item(6).kind, Kind::kBool);
    EXPECT_EQ(item(6).integer, 1);
    EXPECT_EQ(item(7).kind, Kind::kTuple);
    EXPECT_EQ(p.item(item(8), 0)->integer, 1);
    const PickleValue* const list = p.find(item(9), "k");
    ASSERT_NE(list, nullptr);
    EXPECT_EQ(list->items.size(), 1u);
    EXPECT_EQ(p.find(item(9), "l"), nullptr);
    EXPECT_EQ(p.item(p.root(), 10), nullptr);
  }
}

TEST(PickleTest, EveryBeginningIsDamaged) {
  for (const std::string& bytes : {kProtocol2, kProtocol4}) {
    for (std::size_t n = 0; n < bytes.size(); ++n) {
      EXPECT_EQ(Pickle::parse(std::string_view(bytes).substr(0, n)).status().code(), Code::kCorrupt)
          << n;
    }
  }
}

// cos\nsystem with an argument: Python would run it.
TEST(PickleTest, NothingIsRun) {
  const Pickle p = Pickle::parse(
                       "\x80\x02"
                       "cposix\nsystem\nX\x04\x00\x00\x00ruin\x85R."s)
                       .take_or_throw();
  EXPECT_EQ(p.class_name(p.root()), "posix.system");
  EXPECT_EQ(p.root().kind, Kind::kObject);
}

TEST(PickleTest, WhatNoFileHasIsRefused) {
  EXPECT_THAT(fault_of("\x80\x02(i"s), HasSubstr("opcode 0x69 ('i')"));
  EXPECT_THAT(fault_of("\x80\x01N."s), HasSubstr("protocol 1"));
  EXPECT_THAT(fault_of("\x80\x02h\x07."s), HasSubstr("memo that is empty"));
  EXPECT_THAT(fault_of("\x80\x02Nr\xff\xff\xff\xff."s), HasSubstr("no such file needs"));
  EXPECT_THAT(fault_of("\x80\x02X\xff\xff\xff\xff!."s), HasSubstr("longer than the file"));
  EXPECT_THAT(fault_of("\x80\x02\x8a\x09"s + std::string(9, '\x01') + "."), HasSubstr("64 bits"));
  EXPECT_THAT(fault_of("\x80\x02K\x01K\x02R."s), HasSubstr("no class"));
  EXPECT_THAT(fault_of("\x80\x02NNa."s), HasSubstr("holds none"));
  EXPECT_THAT(fault_of("\x80\x02}(Nu."s), HasSubstr("without a value"));
  EXPECT_THAT(fault_of("\x80\x02NN."s), HasSubstr("more than one value"));
  EXPECT_THAT(fault_of("\x80\x02t."s), HasSubstr("no mark"));
  // what lies below a mark is out of reach
  EXPECT_THAT(fault_of("\x80\x02N(\x85."s), HasSubstr("nothing on the stack"));
}

TEST(PickleTest, AListInItselfHasAnEnd) {
  const Pickle p = Pickle::parse(
                       "\x80\x02]q\x00h\x00"
                       "a."s)
                       .take_or_throw();
  EXPECT_EQ(p.item(p.root(), 0), &p.root());
}

TEST(PickleTest, TheWriterIsRead) {
  PickleWriter w;
  w.empty_dict();
  w.mark();
  w.text("numbers");
  w.integers(std::vector<std::int64_t>{-5, 0, std::int64_t{1} << 62});
  w.text("real");
  w.real(-0.125);
  w.text("size");
  w.sizes(std::vector<std::int64_t>{2, 3});
  w.set_all();
  const std::string bytes = std::move(w).finish();
  const Pickle p = Pickle::parse(bytes).take_or_throw();
  const PickleValue& numbers = *p.find(p.root(), "numbers");
  EXPECT_EQ(p.item(numbers, 0)->integer, -5);
  EXPECT_EQ(p.item(numbers, 2)->integer, std::int64_t{1} << 62);
  EXPECT_EQ(p.find(p.root(), "real")->real, -0.125);
  EXPECT_EQ(p.class_name(*p.find(p.root(), "size")), "torch.Size");
}

}  // namespace
}  // namespace stormo::checkpoint
