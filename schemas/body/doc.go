// Package body is the shape of a cell's body as it is stored, and the way
// between that and JSON text.
//
//	stored   byte 0      format: 1 MessagePack then zlib, 2 MessagePack,
//	                     3 (dictionary), 4 (encrypted), 5 (erased) reserved
//	         bytes 1-4   CRC-32C (Castagnoli) of all that follows, big endian
//	         bytes 5-    payload
//
// Format 1 is written when zlib saves at least a fifth of the MessagePack.
//
// # The MessagePack
//
// One value, nothing after it. Containers, strings and integers have their
// shortest encoding; object keys are strings and keep their order. A number's
// text is kept exactly:
//
//   - an integer without fraction and exponent that fits int64 or uint64 is a
//     MessagePack integer;
//   - a number of at least 7 characters whose float64 prints back (see
//     appendFloat) to the same text is a float64, and stands for that text,
//     not for its binary value;
//   - every other number (-0, 1.50, 1e400, 30 digits) is an extension of type
//     1 that holds its JSON text. Up to 6 characters this is also the shortest.
//
// So a payload is at most one and a half times as long as its JSON text.
//
// # Promises
//
//   - JSON in, the same JSON out: AppendJSON returns the text that Encode was
//     given, compacted, with keys in their order, numbers character for
//     character, and strings in their shortest escaping; never a byte longer.
//   - Encode takes RFC 8259 JSON only and refuses what others let pass:
//     duplicate keys at any depth, bad UTF-8, escapes of lone surrogates
//     ("\ud800"), a byte order mark, anything after the value.
//   - Equal and Hash are about the JSON value, never about stored bytes: see
//     canonical.go. Two nodes may hold different bytes of one value.
//   - Hostile stored bytes are refused with an error. They never crash a
//     process, and cost memory in proportion to their length and to the cap
//     that the caller gives: declared lengths are held against the bytes that
//     are left before anything is made for them.
//
// Not promised: that AppendJSON finds a duplicate key in bytes that Encode did
// not write.
//
// All functions are safe for concurrent use. They keep no reference to their
// arguments.
package body
