#include <gmock/gmock.h>
#include <stormo/base/text.h>

#include <cstdint>

namespace stormo {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(NumberIn, TakesTheWholeTextOrNothing) {
  EXPECT_EQ(number_in<int>("-12"), -12);
  EXPECT_EQ(number_in<double>("2.5e3"), 2500.0);
  EXPECT_EQ(number_in<std::uint64_t>("ff", 16), 255u);
  for (const char* wrong : {"", " 1", "1 ", "+1", "1x", "x", "0x1"}) {
    EXPECT_EQ(number_in<int>(wrong), std::nullopt) << wrong;
  }
}

TEST(Shortest, IsReadAsTheSameNumber) {
  EXPECT_EQ(shortest(0.1), "0.1");
  EXPECT_EQ(shortest(1e-7), "1e-07");
  for (const double x : {1.0 / 3, -5e-324, 1.7976931348623157e308, 123456789.0}) {
    EXPECT_EQ(number_in<double>(shortest(x)), x);
  }
}

TEST(NumberIn, RefusesWhatDoesNotFitTheType) {
  EXPECT_EQ(number_in<std::uint16_t>("65535"), 65535);
  EXPECT_EQ(number_in<std::uint16_t>("65536"), std::nullopt);
  EXPECT_EQ(number_in<std::uint16_t>("-1"), std::nullopt);
}

TEST(Split, KeepsEmptyPartsButNoneAtTheEnd) {
  EXPECT_THAT(split("a,bc", ','), ElementsAre("a", "bc"));
  EXPECT_THAT(split("a,,b,", ','), ElementsAre("a", "", "b"));
  EXPECT_THAT(split(",a", ','), ElementsAre("", "a"));
  EXPECT_THAT(split(",", ','), ElementsAre(""));
  EXPECT_THAT(split("", ','), IsEmpty());
}

TEST(LowerCase, LeavesWhatIsNotAscii) { EXPECT_EQ(lower_case("N/A Ä_Z9"), "n/a Ä_z9"); }

TEST(FirstCharacter, IsTheShortestFormOfACharacterOrNone) {
  const auto code_of = [](std::string_view text) {
    const Character c = first_character(text);
    return c.length == 0 ? std::nullopt : std::optional(c.code);
  };
  EXPECT_EQ(code_of("ab"), U'a');
  EXPECT_EQ(code_of("\u00e4b"), U'\u00e4');
  EXPECT_EQ(first_character("\U0001f600").length, 4u);
  for (const char* wrong :
       {"\x80", "\xc3", "\xc0\x80", "\xe0\x80\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xff"}) {
    EXPECT_EQ(code_of(wrong), std::nullopt) << wrong;
  }
}

}  // namespace
}  // namespace stormo
