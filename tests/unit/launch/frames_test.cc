#include <stormo/launch/job/frames.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stormo/base/rng.h>
#include <stormo/launch/process/output.h>

namespace stormo::launch {
namespace {

using ::testing::ElementsAre;

struct Heard {
  std::vector<Frame> frames;
  std::vector<std::string> noise;
  Status feed(FrameReader& reader, std::string_view bytes) {
    return reader.feed(
        bytes, [&](Frame f) { frames.push_back(std::move(f)); },
        [&](std::string_view line) { noise.emplace_back(line); });
  }
};

TEST(Frames, SurviveAnyCut) {
  const std::vector<Frame> sent{{"hello", 0, 0, "0.1.0"},
                                {"output", 3, 2, std::string("a\n{\"event\"\0\xff", 11)},
                                {"output", 3, 1, ""},
                                {"exited", 4, 7, ""},
                                {"message", 0, 0, "line\n"}};
  std::string stream = "Welcome to b\nlast login: never\n";
  for (const Frame& f : sent) stream += encode(f);
  for (std::size_t piece : {1u, 2u, 3u, 7u, 64u, 4096u}) {
    FrameReader reader;
    Heard heard;
    for (std::size_t at = 0; at < stream.size(); at += piece)
      ASSERT_TRUE(heard.feed(reader, std::string_view(stream).substr(at, piece)).ok());
    EXPECT_EQ(heard.frames, sent) << piece;
    EXPECT_THAT(heard.noise, ElementsAre("Welcome to b", "last login: never"));
  }
}

TEST(Frames, NoiseAfterTheFirstFrameIsAnError) {
  FrameReader reader;
  Heard heard;
  ASSERT_TRUE(heard.feed(reader, encode({"hello", 0, 0, "x"})).ok());
  EXPECT_FALSE(heard.feed(reader, "surprise\n").ok());
}

TEST(Frames, LengthsAreBounded) {
  Heard heard;
  FrameReader a;
  EXPECT_FALSE(heard
                   .feed(a, R"({"event":"output","rank":0,"value":1,"bytes":99999999999})"
                            "\n")
                   .ok());
  FrameReader b;
  EXPECT_FALSE(heard.feed(b, std::string(FrameReader::kMaxHeader + 1, 'x')).ok());
}

TEST(Frames, RandomBytesNeverCrash) {
  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    Rng rng(seed, "frames");
    std::string bytes = encode({"output", 1, 1, "abc"});
    for (int i = 0; i < 4; ++i) bytes[rng.below(bytes.size())] = static_cast<char>(rng.below(256));
    FrameReader reader;
    Heard heard;
    (void)heard.feed(reader, bytes);
    EXPECT_LE(heard.frames.size(), 1u);
  }
}

TEST(Signals, RoundTripAndBounds) {
  EXPECT_EQ(decode_signal(encode_signal(15)), 15);
  for (const char* bad : {"", "{}", R"({"signal":0})", R"({"signal":"15"})", R"({"signal":900})"})
    EXPECT_EQ(decode_signal(bad), 0) << bad;
}

TEST(LineSplitter, CutsAtNewlinesOnly) {
  for (std::size_t piece : {1u, 2u, 5u, 100u}) {
    const std::string text = "one\n\ntwo three\nlast";
    LineSplitter splitter;
    std::vector<std::string> lines;
    const auto keep = [&](std::string_view line) { lines.emplace_back(line); };
    for (std::size_t at = 0; at < text.size(); at += piece)
      splitter.feed(std::string_view(text).substr(at, piece), keep);
    EXPECT_THAT(lines, ElementsAre("one", "", "two three"));
    splitter.finish(keep);
    EXPECT_THAT(lines, ElementsAre("one", "", "two three", "last"));
    splitter.finish(keep);
    EXPECT_EQ(lines.size(), 4u);
  }
}

TEST(LineSplitter, ALineWithoutEndIsBounded) {
  LineSplitter splitter;
  std::size_t bytes = 0;
  std::size_t longest = 0;
  const auto keep = [&](std::string_view line) {
    bytes += line.size();
    longest = std::max(longest, line.size());
  };
  for (int i = 0; i < 300; ++i) splitter.feed(std::string(1000, 'x'), keep);
  splitter.finish(keep);
  EXPECT_EQ(bytes, 300000u);
  EXPECT_LE(longest, LineSplitter::kLongest);
}

}  // namespace
}  // namespace stormo::launch
