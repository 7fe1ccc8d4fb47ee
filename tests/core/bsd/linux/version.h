#error <linux/version.h> is Linux's
