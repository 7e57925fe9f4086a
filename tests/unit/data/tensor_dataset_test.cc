#include <stormo/data/tensor_dataset.h>

#include <gmock/gmock.h>

#include <sys/stat.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <utility>

#include <stormo/data/image/idx.h>
#include <stormo/data/image/image_folder.h>
#include <stormo/data/npy.h>
#include <stormo/data/table/table.h>
#include <stormo/data/table/text_classification.h>
#include <stormo/data/text/text.h>
#include <stormo/data/torch_dataset.h>

#include <torch/data/datasets/map.h>
#include <torch/data/transforms/stack.h>

#include "npy_bytes.h"
#include "scratch.h"

namespace stormo::data {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(TensorDataset, ConvertsRowsOfEveryType) {
  const torch::Tensor numbers = torch::arange(24, torch::kFloat64).view({4, 2, 3});
  const torch::Tensor targets = torch::tensor({1, 0, 2, 1}, torch::kInt32);
  for (const auto type : {torch::kUInt8, torch::kInt8, torch::kInt16, torch::kInt32, torch::kInt64,
                          torch::kHalf, torch::kBFloat16, torch::kFloat32, torch::kFloat64}) {
    for (const auto dtype : {torch::kFloat32, torch::kFloat64}) {
      const auto made = TensorDataset::create(numbers.to(type), targets, dtype);
      ASSERT_TRUE(made.ok()) << made.status().to_string();
      EXPECT_EQ((*made)->classes(), 3);
      EXPECT_THAT((*made)->sample_shape(), ElementsAre(1, 2, 3));
      const Batch batch = (*made)->get(std::vector<std::int64_t>{3, 0, 3}, 7);
      torch::Tensor expected = torch::stack({numbers[3], numbers[0], numbers[3]}).unsqueeze(1);
      if (type == torch::kUInt8) expected = expected / 255;
      EXPECT_EQ(batch.input.scalar_type(), dtype);
      EXPECT_TRUE(batch.input.to(torch::kFloat64).allclose(expected, 1e-6, 0));
      EXPECT_TRUE(batch.target.equal(torch::tensor({1, 1, 1}, torch::kInt64)));
    }
  }
}

TEST(TensorDataset, TakesNumbersAsTargets) {
  using Targets = TensorDataset::Targets;
  const torch::Tensor inputs = torch::zeros({3, 2});
  for (const auto& targets : {torch::tensor({1.5, -2.0, 7.0}, torch::kFloat64),
                              torch::tensor({1, -2, 7}, torch::kInt32)}) {
    const auto made = TensorDataset::create(inputs, targets, torch::kFloat32, Targets::kNumbers);
    ASSERT_TRUE(made.ok()) << made.status().to_string();
    EXPECT_EQ((*made)->classes(), 0);
    const Batch batch = (*made)->get(std::vector<std::int64_t>{2, 0}, 0);
    EXPECT_TRUE(batch.target.equal(torch::stack({targets[2], targets[0]}).to(torch::kFloat32)));
  }
  const Status bad = TensorDataset::create(inputs, torch::tensor({1.0F, NAN, 2.0F}),
                                           torch::kFloat32, Targets::kNumbers)
                         .status();
  EXPECT_THAT(bad.message(), HasSubstr("finite"));
}

TEST(TensorDataset, SaysWhatDoesNotFit) {
  const auto message = [](const torch::Tensor& inputs, const torch::Tensor& targets) {
    const Status status = TensorDataset::create(inputs, targets, torch::kFloat32).status();
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    return status.message();
  };
  const torch::Tensor good = torch::zeros({2, 3}), labels = torch::zeros({2}, torch::kInt64);
  EXPECT_THAT(message(torch::zeros({2}), labels), HasSubstr("of shape [2]"));
  EXPECT_THAT(message(good.t(), labels), HasSubstr("contiguous"));
  EXPECT_THAT(message(good, torch::zeros({2})), HasSubstr("whole numbers"));
  EXPECT_THAT(message(good, torch::zeros({3}, torch::kInt64)), HasSubstr("3 targets"));
  EXPECT_THAT(message(torch::zeros({0, 3}), torch::zeros({0}, torch::kInt64)),
              HasSubstr("at least one"));
  EXPECT_THAT(message(good, torch::tensor({0, -4}, torch::kInt64)), HasSubstr("sample 1 is -4"));
  for (const auto type : {torch::kFloat8_e4m3fn, torch::kFloat8_e5m2, torch::kComplexFloat,
                          torch::kUInt16, torch::kBool}) {
    EXPECT_THAT(message(good.to(type), labels),
                AllOf(HasSubstr(c10::toString(type)), HasSubstr("bfloat16")));
    EXPECT_THAT(message(good, labels.to(type)), HasSubstr(c10::toString(type)));
  }
}

TEST(TensorDataset, RefusesNumbersThatItsTypeCannotHold) {
  torch::Tensor inputs = torch::ones({3, 2}, torch::kFloat64);
  inputs[2][1] = 1e39;
  const torch::Tensor labels = torch::zeros({3}, torch::kInt64);
  const Status beyond = TensorDataset::create(inputs, labels, torch::kFloat32).status();
  EXPECT_EQ(beyond.code(), Code::kInvalidArgument);
  EXPECT_THAT(beyond.message(), AllOf(HasSubstr("sample 2"), HasSubstr("float64")));
  EXPECT_TRUE(TensorDataset::create(inputs, labels, torch::kFloat64).ok());
  inputs[2][1] = 1e-300;
  EXPECT_TRUE(TensorDataset::create(inputs, labels, torch::kFloat32).ok());
  for (const double number : {double{NAN}, double{INFINITY}}) {
    inputs[2][1] = number;
    EXPECT_FALSE(TensorDataset::create(inputs, labels, torch::kFloat64).ok());
    EXPECT_FALSE(TensorDataset::create(inputs.to(torch::kHalf), labels, torch::kFloat32).ok());
  }
  const Status target =
      TensorDataset::create(torch::ones({2, 1}), torch::tensor({1.0, 1e39}, torch::kFloat64),
                            torch::kFloat32, TensorDataset::Targets::kNumbers)
          .status();
  EXPECT_THAT(target.message(), HasSubstr("sample 1 is 1e+39"));
}

TEST(TensorDataset, MovesChannelsToTheFront) {
  const torch::Tensor images = torch::arange(2 * 4 * 5 * 3, torch::kFloat32).view({2, 4, 5, 3});
  const torch::Tensor labels = torch::zeros({2}, torch::kInt64);
  for (const auto dtype : {torch::kFloat32, torch::kFloat64}) {
    const auto made =
        TensorDataset::create(images, labels, dtype, TensorDataset::Targets::kClasses, 10, true);
    ASSERT_TRUE(made.ok()) << made.status().to_string();
    EXPECT_THAT((*made)->sample_shape(), ElementsAre(3, 4, 5));
    const Batch batch = (*made)->get(std::vector<std::int64_t>{1, 0}, 0);
    EXPECT_TRUE(
        batch.input.equal(torch::stack({images[1], images[0]}).permute({0, 3, 1, 2}).to(dtype)));
  }
  const auto grey = TensorDataset::create(images.flatten(2), labels, torch::kFloat32,
                                          TensorDataset::Targets::kClasses, 10, true);
  EXPECT_THAT((*grey)->sample_shape(), ElementsAre(1, 4, 15));
}

// Rows are looked at when they are needed.
TEST(NpyArray, LargerThanWhatIsReadAtTheStartIsCheckedRowByRow) {
  const Scratch scratch;
  constexpr std::int64_t kRows = 9, kColumns = 1 << 20;  // 72 MiB, most of it a hole
  const std::string path = scratch.write(
      "x.npy", npy_bytes("{'descr': '<f8', 'fortran_order': False, 'shape': (9, 1048576), }", ""));
  const auto header = std::filesystem::file_size(path);
  std::filesystem::resize_file(path, header + 8 * kRows * kColumns);
  const double beyond = 1e39;
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(static_cast<std::streamoff>(header + 8 * (7 * kColumns + 5)));
  file.write(reinterpret_cast<const char*>(&beyond), sizeof beyond);
  file.close();
  const auto made = TensorDataset::create(NpyArray::open(path).take_or_throw(),
                                          torch::zeros({kRows}, torch::kInt64), torch::kFloat32);
  ASSERT_TRUE(made.ok()) << made.status().to_string();
  EXPECT_EQ((*made)->get(std::vector<std::int64_t>{6}, 0).input.sum().item<double>(), 0);
  try {
    (void)(*made)->get(std::vector<std::int64_t>{7}, 0);
    FAIL() << "a number that is not finite was used";
  } catch (const Error& e) {
    EXPECT_THAT(e.status().message(), AllOf(HasSubstr(path), HasSubstr("sample 7")));
  }
}

TEST(NpyArray, ReadsTheElementsAndNamesTheFile) {
  const Scratch scratch;
  const std::vector<float> values = {1, -2, 3.5, 0, 5, 6};
  std::string elements(values.size() * sizeof(float), '\0');
  std::memcpy(elements.data(), values.data(), elements.size());
  const std::string file =
      npy_bytes("{'descr': '<f4', 'fortran_order': False, 'shape': (3, 2), }", elements);
  const auto array = NpyArray::open(scratch.write("x.npy", file));
  ASSERT_TRUE(array.ok()) << array.status().to_string();
  EXPECT_TRUE(array->load().take_or_throw().equal(torch::tensor(values).view({3, 2})));
  const Status bad = NpyArray::open(scratch.write("y.npy", file.substr(0, 99))).status();
  EXPECT_EQ(bad.code(), Code::kCorrupt);
  EXPECT_THAT(bad.message(), HasSubstr("y.npy"));
  EXPECT_EQ(NpyArray::open(scratch.path("none.npy")).status().code(), Code::kNotFound);
  EXPECT_EQ(NpyArray::open(scratch.write("empty.npy", "")).status().code(), Code::kCorrupt);
  EXPECT_EQ(NpyArray::open(scratch.path()).status().code(), Code::kInvalidArgument);
}

TEST(TensorDataset, StrataAreItsClassesOrTheBinsOfItsNumbers) {
  const torch::Tensor rows = torch::zeros({4, 1});
  const auto classes =
      TensorDataset::create(rows, torch::tensor({2, 0, 2, 1}, torch::kInt64), torch::kFloat32);
  EXPECT_THAT((*classes)->strata().all(), ElementsAre(2, 0, 2, 1));
  const auto numbers = TensorDataset::create(rows, torch::tensor({0.5, -3., 0.5, 9.}),
                                             torch::kFloat32, TensorDataset::Targets::kNumbers);
  EXPECT_THAT((*numbers)->strata().all(), ElementsAre(1, 0, 1, 2));
  const auto halves = TensorDataset::create(rows, torch::tensor({1., 2., 3., 4.}), torch::kFloat32,
                                            TensorDataset::Targets::kNumbers, /*bins=*/2);
  EXPECT_THAT((*halves)->strata().all(), ElementsAre(0, 0, 1, 1));
}

// Mapped, this would end the process by SIGBUS.
TEST(NpyArray, ThatShrinksDuringARunIsNamed) {
  const Scratch scratch;
  const std::string path = scratch.write(
      "x.npy", npy_bytes("{'descr': '|u1', 'fortran_order': False, 'shape': (8, 4096), }",
                         std::string(8 * 4096, '\x33')));
  const auto made = TensorDataset::create(NpyArray::open(path).take_or_throw(),
                                          torch::zeros({8}, torch::kInt64), torch::kFloat32);
  ASSERT_TRUE(made.ok()) << made.status().to_string();
  const std::vector<std::int64_t> last = {7};
  EXPECT_TRUE((*made)->get(last, 0).input.allclose(torch::full({1, 4096}, 0.2f)));
  std::filesystem::resize_file(path, 5 * 4096);
  EXPECT_TRUE(
      (*made)->get(std::vector<std::int64_t>{3}, 0).input.allclose(torch::full({1, 4096}, 0.2f)));
  try {
    (*made)->get(last, 0);
    FAIL() << "read what is gone";
  } catch (const Error& e) {
    EXPECT_EQ(e.status().code(), Code::kCorrupt);
    EXPECT_THAT(e.status().message(), AllOf(HasSubstr("x.npy"), HasSubstr("became shorter")));
  }
}

// A pipe without a writer would block the open, a device without an end the reading.
TEST(DataFile, RefusesWhatHasNoEnd) {
  const Scratch scratch;
  const std::string pipe = scratch.path("pipe");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const std::pair<std::string, const char*> cases[] = {
      {pipe, "is a pipe"}, {"/dev/zero", "is a device"}, {scratch.path(), "is a folder"}};
  for (const auto& [path, what] : cases) {
    for (const Status& status :
         {read_text(path).status(), read_idx(path, 1).status(), NpyArray::open(path).status(),
          read_table(path, {}).status(), ImageFolder::of_file(path, {}).status()}) {
      EXPECT_EQ(status.code(), Code::kInvalidArgument);
      EXPECT_THAT(status.message(), AllOf(HasSubstr(path), HasSubstr(what)));
    }
  }
}

TEST(TextClassification, PadsToTheLongestOfTheBatchAndCutsLongTexts) {
  const LabelledTexts texts{.texts = {"a b a", "c", "a b c d e f", ""},
                            .labels = {"1", "0", "1", "0"}};
  const auto vocabulary = WordVocabulary::of(texts.texts, 2);  // a: 2, b: 3
  const auto made = TextClassification::create(texts, vocabulary, Classes::of(texts.labels), 4);
  ASSERT_TRUE(made.ok());
  EXPECT_THAT((*made)->lengths(), ElementsAre(3, 1, 4, 1));
  EXPECT_THAT((*made)->strata().all(), ElementsAre(1, 0, 1, 0));
  const Batch two = (*made)->get(std::vector<std::int64_t>{1, 0}, 0);
  EXPECT_TRUE(two.input.equal(torch::tensor({{1, 0, 0}, {2, 3, 2}}, torch::kInt64)));
  EXPECT_TRUE(two.target.equal(torch::tensor({0, 1}, torch::kInt64)));
  const Batch cut = (*made)->get(std::vector<std::int64_t>{3, 2}, 0);
  EXPECT_TRUE(cut.input.equal(torch::tensor({{1, 0, 0, 0}, {2, 3, 1, 1}}, torch::kInt64)));
  EXPECT_EQ((*made)->get({}, 0).input.size(0), 0);
  const LabelledTexts other{.texts = {"a"}, .labels = {"2"}};
  EXPECT_FALSE(TextClassification::create(other, vocabulary, Classes::of(texts.labels), 4).ok());
}

TEST(TorchDataset, GivesTheSamplesOfLibtorchsDatasets) {
  const torch::Tensor numbers = torch::arange(10, torch::kFloat32).view({5, 2});
  /// Sample i: row i, and the class i % 2.
  struct Rows : torch::data::datasets::Dataset<Rows> {
    explicit Rows(torch::Tensor t) : rows(std::move(t)) {}
    torch::data::Example<> get(std::size_t i) override {
      return {rows[static_cast<std::int64_t>(i)],
              torch::tensor(static_cast<std::int64_t>(i % 2), torch::kInt64)};
    }
    torch::optional<std::size_t> size() const override {
      return static_cast<std::size_t>(rows.size(0));
    }
    torch::Tensor rows;
  };
  const std::vector<std::int64_t> indices = {4, 1};
  for (const auto& dataset :
       {from_torch_dataset(Rows(numbers)),
        from_torch_dataset(Rows(numbers).map(torch::data::transforms::Stack<>()))}) {
    EXPECT_EQ(dataset->size(), 5);
    EXPECT_TRUE(dataset->lengths().empty());
    EXPECT_TRUE(dataset->strata().empty());
    const Batch batch = dataset->get(indices, 0);
    EXPECT_TRUE(batch.input.equal(torch::tensor({{8.f, 9.f}, {2.f, 3.f}})));
    EXPECT_TRUE(batch.target.equal(torch::tensor({0, 1}, torch::kInt64)));
    EXPECT_EQ(dataset->get({}, 0).input.sizes(), at::IntArrayRef({0, 2}));
  }
  EXPECT_THROW(from_torch_dataset(Rows(torch::zeros({0, 2}))), Error);
}

// Also where a read begins or ends inside of a row.
TEST(NpyColumns, AreThoseOfEachSample) {
  Scratch scratch;
  const torch::Tensor all = torch::arange(5 * 2 * 3, torch::kInt16).view({5, 2, 3});
  const std::string bytes(static_cast<const char*>(all.const_data_ptr()), all.nbytes());
  const auto array = NpyArray::open(scratch.write(
      "x.npy", npy_bytes("{'descr': '<i2', 'fortran_order': False, 'shape': (5, 2, 3), }", bytes)));
  ASSERT_TRUE(array.ok()) << array.status().to_string();
  const torch::Tensor rows = all.view({5, 6});
  for (std::int64_t first = 0; first < 6; ++first) {
    for (std::int64_t count = 1; first + count <= 6; ++count) {
      const NpyArray columns = array->columns(first, count);
      EXPECT_EQ(columns.shape(), (std::vector<std::int64_t>{5, count}));
      const torch::Tensor expected = rows.narrow(1, first, count).contiguous();
      EXPECT_TRUE(columns.load()->equal(expected));
      for (std::int64_t from = 0; from < 5 * count; ++from) {
        const torch::Tensor some = torch::empty({5 * count - from}, torch::kInt16);
        const auto out = static_cast<std::byte*>(some.mutable_data_ptr());
        ASSERT_TRUE(columns.read(from, {out, some.nbytes()}).ok());
        EXPECT_TRUE(some.equal(expected.flatten().slice(0, from)));
      }
    }
  }
}

}  // namespace
}  // namespace stormo::data
