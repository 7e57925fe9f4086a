#include <stormo/base/printable.h>

#include <gtest/gtest.h>

#include <stormo/base/rng.h>
#include <stormo/base/status.h>

namespace stormo {
namespace {

TEST(Printable, TextStaysAsItIs) {
  for (const char* text : {"", "rank 3: step 7\n  and more\ttabs", "Größe 10 µs, 学习, 🙂", "a\\b"})
    EXPECT_EQ(printable(text), text);
  EXPECT_EQ(printable_line("a\nb\tc"), "a\\nb\tc");
}

TEST(Printable, WhatATerminalWouldObeyIsSpelledOut) {
  EXPECT_EQ(printable("\x1b]0;title\x07\x1b[2J"), "\\x1b]0;title\\x07\\x1b[2J");
  EXPECT_EQ(printable("10%\r20%\x7f"), "10%\\x0d20%\\x7f");
  EXPECT_EQ(printable(std::string_view("a\0b", 3)), "a\\x00b");
  EXPECT_EQ(printable("\u009b2J"), "\\u009b2J") << "CSI as one character";
  EXPECT_EQ(printable("user\u202e txt.exe"), "user\\u202e txt.exe") << "writes to the left";
  EXPECT_EQ(printable("a\u2028b"), "a\\u2028b") << "a line separator";
}

TEST(Printable, BytesThatAreNoTextAreSpelledOut) {
  EXPECT_EQ(printable("\xff\xfe"), "\\xff\\xfe");
  EXPECT_EQ(printable("\x9b"
                      "2J"),
            "\\x9b2J")
      << "CSI of terminals with 8-bit controls";
  EXPECT_EQ(printable("\xc3"), "\\xc3") << "cut off";
  EXPECT_EQ(printable("\xc0\x9b"), "\\xc0\\x9b") << "longer than it must be";
  EXPECT_EQ(printable("\xe0\x80\x9b"), "\\xe0\\x80\\x9b");
  EXPECT_EQ(printable("\xed\xa0\x80"), "\\xed\\xa0\\x80") << "half a surrogate pair";
}

TEST(Printable, NoByteOfAnyTextReachesTheTerminalAsAControl) {
  Rng rng(7, "printable", 0);
  for (int round = 0; round < 2000; ++round) {
    std::string text(rng.next_u64() % 12, '\0');
    for (char& c : text) c = static_cast<char>(rng.next_u64());
    const std::string shown = printable_line(text);
    for (const char c : shown) {
      const auto byte = static_cast<unsigned char>(c);
      ASSERT_TRUE(byte == '\t' || (byte >= 0x20 && byte != 0x7f)) << shown;
    }
    ASSERT_EQ(printable_line(shown), shown) << "what is fine stays";
  }
}

TEST(Printable, EveryFailureIs) {
  const Status status = invalid_argument("no file 'evil\x1b[2Jname'");
  EXPECT_EQ(status.message(), "no file 'evil\\x1b[2Jname'");
  EXPECT_EQ(status.within("\x1b[31mstep").message(), "\\x1b[31mstep: no file 'evil\\x1b[2Jname'");
}

TEST(MessageText, NoLineBeginsAtTheMargin) {
  EXPECT_EQ(message_text("one"), "one");
  EXPECT_EQ(message_text("a\nstormo: b\n  c\n"), "a\n  stormo: b\n  c\n  ");
  EXPECT_EQ(message_text("a\n\nb\x1b"), "a\n  \n  b\\x1b");
}

TEST(MessageText, SaysHowMuchOfALongTextIsMissing) {
  const std::string text(std::size_t{15} << 20, 'x');
  const std::string shown = message_text(text);
  EXPECT_TRUE(shown == text.substr(0, 64 << 10) + " ... (14.9 MiB left out)")
      << shown.substr((64 << 10) - 10);
  EXPECT_EQ(quoted_text(std::string((8 << 10) + 1, 'x')),
            std::string(8 << 10, 'x') + " ... (1 B left out)");
}

TEST(QuotedText, IsIndentedDeeperThanLinesOfOurs) {
  EXPECT_EQ(quoted_text("a\n  rank 0: fine\nb"), "a\n      rank 0: fine\n    b");
  EXPECT_EQ(message_text(quoted_text("a\nb")), "a\n    b");
}

}  // namespace
}  // namespace stormo
