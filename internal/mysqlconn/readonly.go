package mysqlconn

// ReadOnly is SQL that is 1 where the server refuses the writes of ordinary
// accounts, else 0. The variable is a number in MySQL, and in MariaDB before 12.0;
// since then it is a word: OFF, ON, NO_LOCK or NO_LOCK_NO_ADMIN (MDEV-36425).
const ReadOnly = "(CAST(@@global.read_only AS CHAR) NOT IN ('0', 'OFF'))"
