#include "monitor/state/transaction.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/base/scratch.h"

namespace specdec::monitor {
namespace {

using testing::expect_error;
using testing::Scratch;

TEST(Transaction, KeepsWhatIsCommitted) {
  Scratch dir;
  {
    State state(dir / "s.db");
    Transaction transaction(state);
    transaction.state().set_value("k", "v");
    transaction.state().append(TransitionEntry{0, 1, "A", "B", "e", "r", Json::object()});
    transaction.commit();
  }
  State state(dir / "s.db");
  EXPECT_EQ(state.value("k"), "v");
  EXPECT_EQ(state.transitions(9).size(), 1u);
}

TEST(Transaction, RollsBackWhatIsNotCommitted) {
  Scratch dir;
  State state(dir / "s.db");
  {
    Transaction transaction(state);
    state.set_value("k", "v");
    state.append(TransitionEntry{0, 1, "A", "B", "e", "r", Json::object()});
  }
  EXPECT_EQ(state.value("k"), "");
  EXPECT_TRUE(state.transitions(9).empty());
  Transaction(state).commit();  // a new transaction can begin at once
}

TEST(Transaction, RollsBackWhenAnErrorLeavesIt) {
  Scratch dir;
  State state(dir / "s.db");
  expect_error(ErrorKind::kData, {"the verdict cannot be read"}, [&] {
    Transaction transaction(state);
    state.set_value("k", "v");
    throw Error(ErrorKind::kData, "the verdict cannot be read");
  });
  EXPECT_EQ(state.value("k"), "");
}

TEST(Transaction, IsNotBegunTwice) {
  Scratch dir;
  State state(dir / "s.db");
  Transaction outer(state);
  state.set_value("k", "outer");
  expect_error(ErrorKind::kInternal, {"transaction within a transaction"}, [&] { Transaction inner(state); });
  outer.commit();
  EXPECT_EQ(state.value("k"), "outer") << "the refused one has not rolled the other one back";
}

TEST(Transaction, IsNotSeenByOthersBeforeItIsCommitted) {
  Scratch dir;
  State writer(dir / "s.db");
  writer.set_value("k", "before");
  const State reader(dir / "s.db", State::Open::kExisting);
  Transaction transaction(writer);
  writer.set_value("k", "after");
  EXPECT_EQ(reader.value("k"), "before");
  transaction.commit();
  EXPECT_EQ(reader.value("k"), "after");
}

}  // namespace
}  // namespace specdec::monitor
