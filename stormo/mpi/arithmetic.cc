#include <stormo/mpi/arithmetic.h>

#include <array>
#include <mutex>
#include <utility>

#include <stormo/comm/kernels/kernels.h>
#include <stormo/comm/operation/operation.h>
#include <stormo/comm/operation/outcome.h>

namespace stormo::mpi {
namespace {

using comm::Combine;
using comm::ReduceOp;

// --- 16-bit floats -------------------------------------------------------------------------------

template <DType dtype, Combine how>
void combine_half(void* in, void* acc, int* count, MPI_Datatype*) {
  const comm::Operand terms[] = {{acc}, {in}};
  void* const to[] = {acc};
  comm::reduce(dtype, how, terms, to, *count);
}

/// The operations of one 16-bit type, and the type.
struct Half {
  MPI_Datatype type = MPI_DATATYPE_NULL;
  MPI_Op sum = MPI_OP_NULL;
  MPI_Op product = MPI_OP_NULL;
  MPI_Op min = MPI_OP_NULL;
  MPI_Op max = MPI_OP_NULL;

  template <DType dtype>
  Status create(Library& library) {
    constexpr int kCommutes = 1;
    const auto make = [&](MPI_User_function* f, MPI_Op* op) {
      return library.call("MPI_Op_create", [&] { return MPI_Op_create(f, kCommutes, op); });
    };
    STORMO_RETURN_IF_ERROR(make(combine_half<dtype, Combine::kSum>, &sum));
    STORMO_RETURN_IF_ERROR(make(combine_half<dtype, Combine::kProduct>, &product));
    STORMO_RETURN_IF_ERROR(make(combine_half<dtype, Combine::kMin>, &min));
    STORMO_RETURN_IF_ERROR(make(combine_half<dtype, Combine::kMax>, &max));
    STORMO_RETURN_IF_ERROR(library.call("MPI_Type_contiguous",
                                        [&] { return MPI_Type_contiguous(2, MPI_BYTE, &type); }));
    return library.call("MPI_Type_commit", [&] { return MPI_Type_commit(&type); });
  }
  MPI_Op op(ReduceOp how) const {
    switch (how) {
      case ReduceOp::kProduct: return product;
      case ReduceOp::kMin: return min;
      case ReduceOp::kMax: return max;
      default: return sum;
    }
  }
};

/// Made once, at first need; they live as long as MPI.
Result<const Half*> half_of(Library& library, DType dtype) {
  static Half bfloat16;
  static Half float16;
  static const Status made = [&library] {
    STORMO_RETURN_IF_ERROR(bfloat16.create<DType::kBFloat16>(library));
    return float16.create<DType::kFloat16>(library);
  }();
  if (!made.ok()) return made;
  return dtype == DType::kBFloat16 ? &bfloat16 : &float16;
}

bool is_half(DType dtype) { return dtype == DType::kBFloat16 || dtype == DType::kFloat16; }

// --- what MPI knows ------------------------------------------------------------------------------

MPI_Op known(Combine how) {
  switch (how) {
    case Combine::kSum: return MPI_SUM;
    case Combine::kProduct: return MPI_PROD;
    case Combine::kMin: return MPI_MIN;
    case Combine::kMax: return MPI_MAX;
    case Combine::kBitAnd: return MPI_BAND;
    case Combine::kBitOr: return MPI_BOR;
    case Combine::kBitXor: return MPI_BXOR;
    case Combine::kLogicalAnd: return MPI_LAND;
    case Combine::kLogicalOr: return MPI_LOR;
    case Combine::kLogicalXor: return MPI_LXOR;
  }
  return MPI_OP_NULL;
}

// --- user's reductions ---------------------------------------------------------------------------

constexpr std::size_t kPlaces = 16;
struct Place {
  std::shared_ptr<const comm::UserReduction> user;
  Status outcome;  ///< what it has thrown
};
std::mutex g_places_mutex;
std::array<Place, kPlaces> g_places;

/// An exception must not pass through functions of MPI: it is kept, and what follows is left out.
template <std::size_t place>
void combine_user(void* in, void* acc, int* count, MPI_Datatype*) {
  Place& mine = g_places[place];
  if (!mine.outcome.ok()) return;
  mine.outcome = comm::outcome_of([&] {
    mine.user->combine(in, acc, *count);
    return Status();
  });
}

template <std::size_t... place>
constexpr std::array<MPI_User_function*, kPlaces> all_places(std::index_sequence<place...>) {
  return {combine_user<place>...};
}

std::optional<std::size_t> take_place(std::shared_ptr<const comm::UserReduction> user) {
  const std::lock_guard lock(g_places_mutex);
  for (std::size_t i = 0; i < kPlaces; ++i) {
    if (g_places[i].user != nullptr) continue;
    g_places[i] = {std::move(user), {}};
    return i;
  }
  return std::nullopt;
}

}  // namespace

Result<MPI_Datatype> type_of(Library& library, DType dtype) {
  switch (dtype) {
    case DType::kFloat32: return MPI_FLOAT;
    case DType::kFloat64: return MPI_DOUBLE;
    case DType::kInt8: return MPI_INT8_T;
    case DType::kInt16: return MPI_INT16_T;
    case DType::kInt32: return MPI_INT32_T;
    case DType::kInt64: return MPI_INT64_T;
    case DType::kUInt8:
    case DType::kBool: return MPI_UINT8_T;  // of 0 and 1, so that all operations on bits are right
    case DType::kBFloat16:
    case DType::kFloat16: break;
  }
  STORMO_ASSIGN_OR_RETURN(const Half* half, half_of(library, dtype));
  return half->type;
}

Result<Arithmetic> Arithmetic::of(Library& library, DType dtype, const comm::Reduction& reduction) {
  if (reduction.op != ReduceOp::kUser) {
    if (!is_half(dtype)) return Arithmetic(library, known(comm::combine_of(reduction.op)));
    STORMO_ASSIGN_OR_RETURN(const Half* half, half_of(library, dtype));
    return Arithmetic(library, half->op(reduction.op));
  }
  static constexpr auto kFunctions = all_places(std::make_index_sequence<kPlaces>());
  Arithmetic mine(library, MPI_OP_NULL);
  mine.place_ = take_place(reduction.user);
  if (!mine.place_) {
    return Status(Code::kExhausted,
                  "16 user's reductions are in progress in this process, or were when their groups "
                  "failed; wait for some of them");
  }
  STORMO_RETURN_IF_ERROR(library.call("MPI_Op_create", [&] {
    return MPI_Op_create(kFunctions[*mine.place_], /*commute=*/1, &mine.op_);
  }));
  return mine;
}

Arithmetic::Arithmetic(Arithmetic&& other) noexcept
    : library_(other.library_), op_(other.op_), place_(std::exchange(other.place_, std::nullopt)) {}

Status Arithmetic::outcome() const { return place_ ? g_places[*place_].outcome : Status(); }

Arithmetic::~Arithmetic() {
  if (!place_) return;
  if (op_ != MPI_OP_NULL) {
    const Status freed = library_->call("MPI_Op_free", [&] { return MPI_Op_free(&op_); });
    static_cast<void>(freed);  // the place is free all the same
  }
  const std::lock_guard lock(g_places_mutex);
  g_places[*place_] = {};
}

}  // namespace stormo::mpi
