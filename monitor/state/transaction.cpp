#include "monitor/state/transaction.h"

#include "base/error.h"

namespace specdec::monitor {

Transaction::Transaction(State& state) : state_(state) { state_.begin(); }

Transaction::~Transaction() {
  if (!is_open_) return;
  try {
    state_.rollback();
  } catch (const Error&) {
    // The error is ignored: SQLite rolls back when the connection is closed or when the next process opens the file.
  }
}

void Transaction::commit() {
  state_.commit();
  is_open_ = false;
}

}  // namespace specdec::monitor
