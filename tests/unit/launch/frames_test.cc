#include <stormo/launch/messages/frames.h>

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
  const std::vector<Frame> sent{
      {AgentEvent::kHello, 0, 0, "0.1.0"},
      {AgentEvent::kOutput, 3, 2, std::string("a\nstormo agent\0\xff", 16)},
      {AgentEvent::kOutput, 3, 1, ""},
      {AgentEvent::kExited, 4, 7, ""},
      {AgentEvent::kMessage, 0, 0, "line\n"}};
  std::string stream = "Welcome to b\nlast login: never\n";
  for (const Frame& f : sent) stream += to_bytes(f);
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
  ASSERT_TRUE(heard.feed(reader, to_bytes({AgentEvent::kHello, 0, 0, "x"})).ok());
  EXPECT_FALSE(heard.feed(reader, "surprise\n").ok());
}

TEST(Frames, LengthsAreBounded) {
  Heard heard;
  FrameReader a;
  ASSERT_TRUE(heard.feed(a, to_bytes({AgentEvent::kHello, 0, 0, "x"})).ok());
  EXPECT_FALSE(heard.feed(a, transport::begin_of_frame("", Frame::kMaxPayload + 65)).ok());
  FrameReader b;
  EXPECT_FALSE(heard.feed(b, std::string(FrameReader::kMaxLine + 1, 'x')).ok());
}

TEST(Frames, RandomBytesNeverCrash) {
  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    Rng rng(seed, "frames");
    std::string bytes =
        to_bytes({AgentEvent::kHello, 0, 0, "x"}) + to_bytes({AgentEvent::kOutput, 1, 1, "abc"});
    for (int i = 0; i < 4; ++i) bytes[rng.below(bytes.size())] = static_cast<char>(rng.below(256));
    FrameReader reader;
    Heard heard;
    (void)heard.feed(reader, bytes);
    EXPECT_LE(heard.frames.size(), 2u);
  }
}

TEST(Orders, RoundTripAndBounds) {
  const auto read = [](const AgentOrder& order) {
    return transport::decode<AgentOrder>("agent", transport::encode(order));
  };
  const AgentOrder start{.task = AgentTask::kStart, .value = 900, .rank = 7, .local_rank = 3};
  EXPECT_EQ(*read({.value = 15}), AgentOrder{.value = 15});
  const AgentOrder begin{.task = AgentTask::kBegin, .value = 1, .text = "quorum://10.0.0.1:4001"};
  EXPECT_EQ(*read(start), start);
  EXPECT_EQ(*read(begin), begin);
  EXPECT_FALSE(read({.value = 15, .text = std::string(AgentOrder::kMaxText + 1, 'x')}).ok());
  for (const int bad : {-1, 0, 65, 900}) EXPECT_FALSE(read({.value = bad}).ok()) << bad;
  EXPECT_FALSE(read({.task = AgentTask::kStart, .value = 0}).ok());
  EXPECT_TRUE(read({.task = AgentTask::kLeave, .value = 1, .rank = 7}).ok());
  EXPECT_FALSE(read({.task = static_cast<AgentTask>(6), .value = 1}).ok());
  for (const int bad : {-1, kMaxRanks}) {
    EXPECT_FALSE(read({.task = AgentTask::kStart, .value = 2, .local_rank = bad}).ok()) << bad;
  }
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
