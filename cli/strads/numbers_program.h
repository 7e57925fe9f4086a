#pragma once

#include <cli/strads/program.h>
#include <stormo/strads/data_files.h>

namespace stormo::cli {

/// A program whose variables are numbers for a file, of data that each rank reads or makes.
class NumbersProgram : public StradsProgram {
 public:
  Result<plan::StepPlan> plan(int workers) override;
  Status begin(comm::Communicator& world) override;
  void end() override { rounds_.reset(); }
  strads::RoundsRun& rounds() override { return *rounds_; }
  Result<std::uint64_t> values_hash() override;
  Status write() override { return a_.out.empty() ? Status() : write_values(values_); }

 protected:
  explicit NumbersProgram(const char* its_name) : StradsProgram(its_name, a_) {}

  /// All data, and what is done with them.
  struct Made {
    protocol::ScheduleOptions schedule;
    std::shared_ptr<const protocol::Conflicts> conflicts;
    strads::Workers::MakeWorker worker;
    /// Hashes of the data, which ranks compare. Cost: all data once.
    std::function<std::vector<comm::Fact>()> facts;
  };
  template <class Part, class Problem>
  static Made made(const std::shared_ptr<const Problem>& problem,
                   protocol::ScheduleOptions schedule,
                   std::shared_ptr<const protocol::Conflicts> conflicts = nullptr) {
    using Worker = std::unique_ptr<strads::BlockProgram>;
    return {.schedule = std::move(schedule),
            .conflicts = std::move(conflicts),
            .worker = [problem](int worker, int workers) -> Result<Worker> {
              STORMO_ASSIGN_OR_RETURN(auto part, Part::make(*problem, worker, workers));
              return Worker(std::move(part));
            },
            .facts = [problem] { return strads::identity_of(*problem); }};
  }
  /// Reads or makes the data in one of so many processes of this host, and says how long to go on
  /// (`heading`, `loop`). kInvalidArgument for data that are not as they must be, and where memory
  /// does not hold what comes of them.
  virtual Result<Made> make(int processes) = 0;
  virtual Status write_values(const strads::BlockValues& values) const = 0;

  StradsArguments a_;

 private:
  std::optional<strads::RoundsRun> rounds_;
  strads::BlockValues values_;
};

/// Adds a subcommand, whose words are those of the program.
template <class Program>
void add_program(CLI::App& strads, Invocation& invocation, const char* help, const char* examples) {
  CLI::App* command = strads.add_subcommand(Program::kName, help);
  command->footer(examples);
  const auto program = std::make_shared<Program>(*command);
  command->callback(
      [program, &invocation] { invocation.exit_code = run_program(*program, invocation); });
}

}  // namespace stormo::cli
