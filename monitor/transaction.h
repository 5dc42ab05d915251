// Changes of the state file are committed together or not at all. A transaction begins when it is made, and rolls
// back when it goes out of scope without commit(). What writes inside of one takes it by reference: SQLite has one
// transaction at a time, so a second one on the same state throws.
#pragma once

#include "monitor/state.h"

namespace specdec::monitor {

class Transaction {
 public:
  // Throws Error(kNetwork) if another process writes, Error(kIo) if the disk fails.
  explicit Transaction(State& state);
  ~Transaction();
  Transaction(const Transaction&) = delete;
  Transaction& operator=(const Transaction&) = delete;

  State& state() { return state_; }
  // Makes the changes durable; nothing may be written through this transaction afterwards. Throws as the constructor
  // does, and then the changes are rolled back.
  void commit();

 private:
  State& state_;
  bool is_open_ = true;
};

}  // namespace specdec::monitor
