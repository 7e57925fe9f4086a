#include <stormo/data/text/text.h>

#include <gmock/gmock.h>

#include <filesystem>

#include <stormo/data/text/vocabulary.h>

#include "scratch.h"

namespace stormo::data {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::vector<std::string> kExtensions = {".md", ".cc"};

TEST(ReadTexts, JoinsTheWantedFilesOfAFolderInTheOrderOfTheirPaths) {
  const Scratch scratch;
  scratch.write("b.md", "bee");
  scratch.write("a/z.CC", "zed\n");
  scratch.write("a/b/c.md", "see");
  scratch.write("a/b.md", "ab");
  scratch.write("note.txt", "not wanted");
  scratch.write("build/x.md", "not wanted");
  scratch.write("a/build/x.md", "not wanted");
  scratch.write(".git/x.md", "not wanted");
  scratch.write(".venv/lib/x.md", "not wanted");
  scratch.write(".hidden.md", "not wanted");
  scratch.write("empty.md", "");
  std::filesystem::create_symlink("b.md", scratch.path("link.md"));
  const auto texts = read_texts(scratch.path(), kExtensions);
  ASSERT_TRUE(texts.ok()) << texts.status().to_string();
  EXPECT_EQ(texts->text, "see\nab\nzed\nbee\nbee\n");
  EXPECT_EQ(texts->files.taken(), 5);
  EXPECT_THAT(texts->files.summary(),
              AllOf(HasSubstr("3 hidden"), HasSubstr("2 a folder named build"),
                    HasSubstr("1 ending .txt (note.txt)"), HasSubstr("1 empty (empty.md)")));
}

TEST(ReadTexts, SaysWhatIsNoText) {
  const Scratch scratch;
  scratch.write("a.md", "words");
  scratch.write("b.md", std::string("b\0i\0n\0", 6));  // UTF-16
  const Status wrong = read_texts(scratch.path(), kExtensions).status();
  EXPECT_EQ(wrong.code(), Code::kInvalidArgument);
  EXPECT_THAT(wrong.message(), AllOf(HasSubstr("b.md: a zero byte"), HasSubstr("data.on_error")));
  const auto others = read_texts(scratch.path(), kExtensions, OnError::kSkip);
  ASSERT_TRUE(others.ok());
  EXPECT_EQ(others->text, "words\n");
  EXPECT_THAT(others->files.skipped(), ElementsAre(HasSubstr("b.md: a zero byte")));
}

TEST(ReadTexts, SaysWhenThereIsNothing) {
  const Scratch scratch;
  scratch.write("x.txt", "words");
  const Status empty = read_texts(scratch.path(), kExtensions).status();
  EXPECT_EQ(empty.code(), Code::kInvalidArgument);
  EXPECT_THAT(empty.message(), AllOf(HasSubstr(scratch.path()), HasSubstr(".md, .cc"),
                                     HasSubstr("1 ending .txt (x.txt)")));
  EXPECT_FALSE(read_texts(scratch.path("nowhere"), kExtensions).ok());
}

TEST(ReadText, ReadsWhatIsThereAndNamesWhatIsNot) {
  const Scratch scratch;
  const std::string bytes("one\r\ntwo\0three", 14);
  EXPECT_EQ(*read_text(scratch.write("x", bytes)), bytes);
  EXPECT_THAT(read_text(scratch.write("e", "")).status().message(), HasSubstr("is empty"));
  const Status missing = read_text(scratch.path("nowhere")).status();
  EXPECT_EQ(missing.code(), Code::kNotFound);
  EXPECT_THAT(missing.message(), AllOf(HasSubstr("nowhere"), HasSubstr("data.path")));
}

TEST(ReadTexts, TakesAFileWhateverItsName) {
  const Scratch scratch;
  const auto texts = read_texts(scratch.write("z.bin", "first"), kExtensions);
  ASSERT_TRUE(texts.ok());
  EXPECT_EQ(texts->text, "first");
  EXPECT_EQ(texts->files.taken(), 1);
}

TEST(Vocabulary, BytesEncodeAnything) {
  std::string all;
  for (int b = 0; b < 256; ++b) all.push_back(static_cast<char>(b));
  const Vocabulary v = Vocabulary::bytes();
  EXPECT_EQ(v.size(), 256);
  const auto ids = v.encode(all);
  ASSERT_TRUE(ids.ok());
  for (int b = 0; b < 256; ++b) EXPECT_EQ((*ids)[static_cast<std::size_t>(b)], b);
  EXPECT_EQ(v.decode(std::vector<std::int64_t>(ids->begin(), ids->end())), all);
}

TEST(Vocabulary, CharactersAreSortedAndDistinct) {
  const auto v = Vocabulary::characters("hello \xc3\xa4\xe2\x82\xac\xf0\x9f\x90\xa6 olleh\n");
  ASSERT_TRUE(v.ok());
  EXPECT_EQ(v->size(), 9);
  const std::vector<std::int64_t> all = {0, 1, 2, 3, 4, 5, 6, 7, 8};
  EXPECT_EQ(v->decode(all), "\n ehlo\xc3\xa4\xe2\x82\xac\xf0\x9f\x90\xa6");
  EXPECT_THAT(*v->encode("hole\xe2\x82\xac"), ElementsAre(3, 5, 4, 2, 7));
  EXPECT_EQ(*Vocabulary::characters(v->decode(all)), *v);
}

TEST(Vocabulary, NamesAnUnknownCharacter) {
  const auto v = Vocabulary::characters("abc");
  const Status unknown = v->encode("abd").status();
  EXPECT_EQ(unknown.code(), Code::kInvalidArgument);
  EXPECT_THAT(unknown.message(), HasSubstr("\"d\" (U+0064)"));
}

TEST(Vocabulary, RefusesWhatIsNotUtf8) {
  // stray continuation, truncated, overlong (2, 3, 4 bytes), surrogate, beyond U+10FFFF, 0xff
  for (const char* bad : {"ab\x80", "ab\xc3", "ab\xe2\x82", "ab\xc0\x80", "ab\xe0\x80\x80",
                          "ab\xf0\x80\x80\x80", "ab\xed\xa0\x80", "ab\xf4\x90\x80\x80", "ab\xff"}) {
    const Status status = Vocabulary::characters(bad).status();
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << bad;
    EXPECT_THAT(status.message(), HasSubstr("at byte 2"));
  }
  EXPECT_THAT(Vocabulary::characters("").status().message(), HasSubstr("empty"));
}

}  // namespace
}  // namespace stormo::data
