#include <cli/plan/picture.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stormo/schedule/builders.h>

#include <regex>
#include <string>

#include <cli/plan/rounds.h>

namespace stormo::cli {
namespace {

using ::testing::HasSubstr;

std::size_t count(const std::string& text, const std::string& what) {
  std::size_t found = 0;
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) {
    ++found;
  }
  return found;
}

TEST(PlanRounds, JoinsWhatOneRankSendsAnother) {
  const plan::Schedule s = schedule::halving_doubling_all_reduce(8);
  const auto arrows = arrows_of(s.rounds[0]);
  ASSERT_EQ(arrows.size(), 8u);
  EXPECT_EQ(arrows[0].to, 1);
  EXPECT_EQ(label_of(arrows[0]), "+c4-7");
  EXPECT_EQ(label_of({0, 1, plan::ReceiveOp::kCopy, {0, 2, 3, 5, 6, 7}}), "=c0,2,3,5-7");
}

TEST(PlanPicture, HasAnArrowForEveryMessage) {
  for (const schedule::Builder& b : schedule::builders()) {
    const plan::Schedule s = b.build(4, 2, 1, 2).take_or_throw();
    std::size_t reduced = 0, copied = 0;
    for (const plan::Round& round : s.rounds) {
      for (const Arrow& arrow : arrows_of(round)) {
        ++(arrow.how == plan::ReceiveOp::kReduce ? reduced : copied);
      }
    }
    const std::string svg = svg_picture(s).take_or_throw(), dot = dot_picture(s).take_or_throw();
    EXPECT_EQ(count(svg, "<g class=\"reduce\">"), reduced) << b.name;
    EXPECT_EQ(count(svg, "<g class=\"copy\">"), copied) << b.name;
    EXPECT_EQ(count(dot, "arrowhead=normal"), reduced + copied) << b.name;
    EXPECT_EQ(count(dot, "style=dashed"), copied) << b.name;
    EXPECT_EQ(count(svg, ">rank "), 4 + reduced + copied) << b.name;
  }
}

/// Every element that is opened is closed, in order.
void expect_well_formed(const std::string& svg) {
  std::vector<std::string> open;
  const std::regex tag("<(/?)([a-z]+)[^>]*?(/?)>");
  for (std::sregex_iterator it(svg.begin(), svg.end(), tag), end; it != end; ++it) {
    if ((*it)[3].length() > 0) continue;
    if ((*it)[1].length() == 0) {
      open.push_back((*it)[2]);
      continue;
    }
    ASSERT_FALSE(open.empty());
    EXPECT_EQ(open.back(), (*it)[2]);
    open.pop_back();
  }
  EXPECT_TRUE(open.empty());
}

TEST(PlanPicture, NamesFromFilesCannotBreakThePicture) {
  plan::Schedule s = schedule::ring_all_reduce(3);
  s.name = "a\"]; <script>&\\\x01\xff";
  const std::string svg = svg_picture(s).take_or_throw();
  expect_well_formed(svg);
  EXPECT_THAT(svg, HasSubstr("&lt;script&gt;&amp;"));
  EXPECT_THAT(dot_picture(s).take_or_throw(), HasSubstr("digraph \"a\\\"]; <script>&\\\\ "));
}

TEST(PlanPicture, RefusesWhatNobodyCouldRead) {
  const auto picture = svg_picture(schedule::direct_all_gather(100));
  ASSERT_FALSE(picture.ok());
  EXPECT_THAT(picture.status().message(), HasSubstr("give fewer ranks"));
  EXPECT_TRUE(svg_picture(schedule::ring_all_reduce(1)).ok());
}

}  // namespace
}  // namespace stormo::cli
