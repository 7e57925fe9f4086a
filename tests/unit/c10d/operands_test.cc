#include <gmock/gmock.h>
#include <torch/torch.h>

#include <string>
#include <vector>

#include <stormo/c10d/operands.h>

namespace stormo::c10d {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using torch::Tensor;
using Op = ::c10d::ReduceOp;

std::string refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const c10::ValueError& e) {
    return e.what_without_backtrace();
  }
  return "nothing";
}

TEST(InOrder, IsTheTensorItselfOrACopyInTheOrderOfItsRows) {
  const Tensor whole = torch::arange(12.).view({3, 4});
  EXPECT_TRUE(in_order(whole).is_same(whole));
  const Tensor turned = whole.t();
  EXPECT_FALSE(in_order(turned).is_same(turned));
  EXPECT_TRUE(torch::equal(in_order(turned).flatten(), turned.reshape({12})));
  EXPECT_TRUE(in_order(turned).is_contiguous());
}

TEST(InOrder, HasTheValuesOfAConjugateView) {
  const Tensor conjugate = torch::tensor({c10::complex<float>(1, 2)}).conj();
  ASSERT_TRUE(conjugate.is_contiguous());
  const Tensor memory = in_order(conjugate);
  EXPECT_EQ(static_cast<const float*>(memory.const_data_ptr())[1], -2);
}

TEST(InOrder, RefusesWhatHasNoMemoryOfItsOwnOnTheCpu) {
  EXPECT_THAT(refusal([] { in_order(Tensor()); }), HasSubstr("undefined"));
  EXPECT_THAT(refusal([] { in_order(torch::empty({2}, torch::kMeta)); }), HasSubstr("meta"));
  EXPECT_THAT(refusal([] { in_order(torch::eye(2).to_sparse()); }), HasSubstr(".to_dense()"));
}

TEST(Assign, ReachesViewsLeavesAndTensorsOfAnInferenceMode) {
  const Tensor leaf = torch::zeros({2, 3}, torch::requires_grad());
  const Tensor values = torch::arange(6.);
  assign(leaf, values);
  EXPECT_TRUE(torch::equal(leaf.detach().flatten(), values));
  const Tensor turned = torch::zeros({3, 2}).t();
  assign(turned, values);
  EXPECT_TRUE(torch::equal(turned, values.view({2, 3})));
  const Tensor inferred = [] {
    const c10::InferenceMode mode;
    return torch::zeros({3, 2}).t();
  }();
  assign(inferred, values);
  EXPECT_EQ(inferred[1][0].item<float>(), 3);
}

TEST(Copied, GoesAsBytesWhereStormoHasNoSuchType) {
  EXPECT_EQ(copied(torch::zeros({3})).dtype, DType::kFloat32);
  for (const auto type : {torch::kComplexFloat, torch::kUInt32, torch::kFloat8_e4m3fn}) {
    const Tensor tensor = torch::empty({3}, type);
    const comm::Buffer buffer = copied(tensor);
    EXPECT_EQ(buffer.dtype, DType::kUInt8);
    EXPECT_EQ(buffer.bytes(), tensor.nbytes()) << type;
  }
}

TEST(ArithmeticOf, KnowsWhichReductionsATypeHas) {
  using enum comm::ReduceOp;
  EXPECT_EQ(arithmetic_of(Op::AVG, torch::kBFloat16).op, kAverage);
  EXPECT_EQ(arithmetic_of(Op::BXOR, torch::kInt64).op, kBitXor);
  EXPECT_EQ(arithmetic_of(Op::SUM, torch::kBool).op, kLogicalOr);
  EXPECT_EQ(arithmetic_of(Op::MIN, torch::kBool).op, kLogicalAnd);
  EXPECT_EQ(arithmetic_of(Op::SUM, torch::kUInt64).dtype, DType::kInt64);
  const Arithmetic complex = arithmetic_of(Op::SUM, torch::kComplexDouble);
  EXPECT_EQ(complex.dtype, DType::kFloat64);
  EXPECT_EQ(complex.parts, 2);
  for (const auto& [op, type] :
       std::vector<std::pair<Op::RedOpType, c10::ScalarType>>{{Op::AVG, torch::kInt64},
                                                              {Op::BAND, torch::kFloat32},
                                                              {Op::MAX, torch::kComplexFloat},
                                                              {Op::PRODUCT, torch::kComplexFloat},
                                                              {Op::MAX, torch::kUInt32},
                                                              {Op::AVG, torch::kUInt32},
                                                              {Op::AVG, torch::kBool},
                                                              {Op::SUM, torch::kFloat8_e5m2}}) {
    EXPECT_THAT(refusal([op = op, type = type] { arithmetic_of(op, type); }),
                HasSubstr("is not possible"))
        << int(op) << " of " << type;
  }
}

TEST(Multiplied, LeavesTheTensorAsItIs) {
  const Tensor tensor = torch::arange(3.);
  EXPECT_TRUE(torch::equal(multiplied(tensor, ::c10d::makePreMulSum(0.5)), tensor * 0.5));
  const Op by_tensor = ::c10d::makePreMulSum(torch::tensor({2.}, torch::kFloat64));
  EXPECT_EQ(multiplied(tensor, by_tensor).scalar_type(), torch::kFloat32);
  EXPECT_EQ(tensor[2].item<float>(), 2);
}

TEST(Adjacent, AreChunksOfOneTensorInTheirOrder) {
  const Tensor whole = torch::arange(10.);
  const std::vector<Tensor> parts = whole.split(4);
  EXPECT_TRUE(torch::equal(adjacent(parts), whole));
  EXPECT_EQ(adjacent(parts).data_ptr(), whole.data_ptr());
  EXPECT_THAT(counts_of(parts), ElementsAre(4, 4, 2));
  EXPECT_FALSE(adjacent(std::vector{parts[1], parts[0]}).defined());
  EXPECT_FALSE(adjacent(std::vector{parts[0], parts[2]}).defined());
  EXPECT_FALSE(adjacent(std::vector{parts[0], torch::zeros({4})}).defined());
}

TEST(NewMemory, IsInTheArenaUnlessItIsSmall) {
  auto arena = transport::Arena::create({.capacity_bytes = 1 << 20, .single_process = true});
  transport::Arena& own = transport::Arena::immortal(std::move(arena).take_or_throw());
  EXPECT_FALSE(own.contains(new_memory(own, {4}, torch::kFloat32).data_ptr()));
  {
    const Tensor large = new_memory(own, {1 << 17}, torch::kFloat32);
    EXPECT_TRUE(own.contains(large.data_ptr()));
    EXPECT_FALSE(own.contains(new_memory(own, {1 << 18}, torch::kFloat32).data_ptr()));  // no room
  }
  EXPECT_EQ(own.stats().in_use_bytes, 0u);
}

}  // namespace
}  // namespace stormo::c10d
