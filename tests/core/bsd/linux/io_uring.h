#error <linux/io_uring.h> is Linux's
