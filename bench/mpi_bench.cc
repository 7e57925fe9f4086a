// The opponents of `stormo bench` over MPI, in the same measuring loop (bench/measure.h). Built
// once with each MPI: openmpi_bench, mpich_bench, intelmpi_bench.
//   mpirun -n 2 openmpi_bench OPERATION DTYPE SECONDS_PER_SIZE PAUSE BYTES...
// Prints one JSON object per size.
#include <mpi.h>

#include <cstdio>
#include <cstdlib>
#include <limits>
#include <new>
#include <optional>

#include <bench/measure.h>
#include <bench/payload.h>

namespace stormo::bench {
namespace {

/// MPI_DATATYPE_NULL for what MPI cannot add.
MPI_Datatype mpi_type(DType dtype) {
  switch (dtype) {
    case DType::kFloat32: return MPI_FLOAT;
    case DType::kFloat64: return MPI_DOUBLE;
    case DType::kInt8: return MPI_INT8_T;
    case DType::kInt16: return MPI_INT16_T;
    case DType::kInt32: return MPI_INT32_T;
    case DType::kInt64: return MPI_INT64_T;
    case DType::kUInt8: return MPI_UINT8_T;
    case DType::kBFloat16:
    case DType::kFloat16:
    case DType::kBool: break;
  }
  return MPI_DATATYPE_NULL;
}

/// Errors of MPI abort the program: its default.
class MpiEngine : public Engine {
 public:
  explicit MpiEngine(DType dtype) : type_(mpi_type(dtype)) {
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &size_);
    MPI_Comm local = MPI_COMM_NULL;
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &local);
    MPI_Comm_size(local, &local_size_);
    MPI_Comm_free(&local);
  }
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  bool one_host() const override { return local_size_ == size_; }
  std::byte* allocate(std::size_t bytes) override {
    return static_cast<std::byte*>(::operator new(bytes, std::align_val_t(4096), std::nothrow));
  }
  void deallocate(std::byte* memory) override { ::operator delete(memory, std::align_val_t(4096)); }
  Status run(Operation operation, const Operands& o) override;
  Status barrier() override {
    MPI_Barrier(MPI_COMM_WORLD);
    return {};
  }
  Status largest(std::span<double> values) override { return combine(values, MPI_MAX); }
  Status total(std::span<double> values) override { return combine(values, MPI_SUM); }

 private:
  static Status combine(std::span<double> values, MPI_Op how) {
    MPI_Allreduce(MPI_IN_PLACE, values.data(), static_cast<int>(values.size()), MPI_DOUBLE, how,
                  MPI_COMM_WORLD);
    return {};
  }

  MPI_Datatype type_;
  int rank_ = 0;
  int size_ = 1;
  int local_size_ = 1;
};

Status MpiEngine::run(Operation operation, const Operands& o) {
  const MPI_Comm world = MPI_COMM_WORLD;
  const int whole = static_cast<int>(o.shape.whole);
  const int part = static_cast<int>(o.shape.part);
  switch (operation) {
    case Operation::kAllReduce:
      MPI_Allreduce(MPI_IN_PLACE, o.out, whole, type_, MPI_SUM, world);
      break;
    case Operation::kReduce:
      MPI_Reduce(rank_ == 0 ? MPI_IN_PLACE : o.in, o.out, whole, type_, MPI_SUM, 0, world);
      break;
    case Operation::kBroadcast: MPI_Bcast(o.out, whole, type_, 0, world); break;
    case Operation::kAllGather: MPI_Allgather(o.in, part, type_, o.out, part, type_, world); break;
    case Operation::kReduceScatter:
      MPI_Reduce_scatter_block(o.in, o.out, part, type_, MPI_SUM, world);
      break;
    case Operation::kGather: MPI_Gather(o.in, part, type_, o.out, part, type_, 0, world); break;
    case Operation::kScatter: MPI_Scatter(o.in, part, type_, o.out, part, type_, 0, world); break;
    case Operation::kAllToAll: MPI_Alltoall(o.in, part, type_, o.out, part, type_, world); break;
    case Operation::kScan: MPI_Scan(MPI_IN_PLACE, o.out, whole, type_, MPI_SUM, world); break;
    case Operation::kBarrier: MPI_Barrier(world); break;
  }
  return {};
}

/// False when a size could not be measured or its results were wrong.
bool measure_and_print(Engine& engine, Operation operation, std::uint64_t bytes,
                       const MeasureOptions& options) {
  if (bytes / size_of(options.dtype) > std::numeric_limits<int>::max() - 4096) {
    std::fprintf(stderr, STORMO_NAME ": MPI counts elements in an int\n");
    return false;
  }
  auto m = measure(engine, operation, bytes, options);
  if (!m.ok()) {
    std::fprintf(stderr, STORMO_NAME ": %s\n", m.status().message().c_str());
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  if (engine.rank() == 0) {
    std::printf("%s\n", to_json(*m).c_str());
    std::fflush(stdout);
  }
  return m->verified;
}

int run_program(int argc, char** argv) {
  const OperationFacts* facts = argc > 5 ? find_operation(argv[1]) : nullptr;
  const auto dtype = argc > 5 ? find_dtype(argv[2]) : std::nullopt;
  if (facts == nullptr || !dtype || mpi_type(*dtype) == MPI_DATATYPE_NULL) {
    std::fputs("usage: " STORMO_NAME " OPERATION DTYPE SECONDS_PER_SIZE PAUSE BYTES...\n", stderr);
    return 2;
  }
  MpiEngine engine(*dtype);
  const MeasureOptions options{.dtype = *dtype,
                               .seconds = std::strtod(argv[3], nullptr),
                               .pause = std::strtod(argv[4], nullptr)};
  bool right = true;
  for (int i = 5; i < argc; ++i) {
    const std::uint64_t bytes = std::strtoull(argv[i], nullptr, 10);
    right = measure_and_print(engine, facts->operation, bytes, options) && right;
  }
  return right ? 0 : 1;
}

}  // namespace
}  // namespace stormo::bench

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  const int code = stormo::bench::run_program(argc, argv);
  MPI_Finalize();
  return code;
}
